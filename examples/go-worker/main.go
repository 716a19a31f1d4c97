// A rollout worker of Headrace in Go, which knows of its records only what is in schemas/avsc. It has no model: it
// answers sums by a script, half of them wrong.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/avro"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Run is what a worker must know of a run: from its recipe, and from the newest version of the policy's weights.
type Run struct {
	id, name, workflow, policy, role, environment, alphabet string
	temperature                                             float64
	partitions, head                                        int64

	readable map[[8]byte]*avro.Schema // by fingerprint
	written  *avro.Schema
	client   *kgo.Client
	isReady  bool // all versions that were published at the start are read
}

// Recipe has the keys of the recipe's JSON that a worker needs.
type Recipe struct {
	Policies  map[string]struct{ Alphabet string }
	Workflows map[string]struct{ Env, Policies map[string]any }
	Rollout   struct{ Temperature float64 }
	Kafka     struct{ Partitions int64 }
}

func main() {
	address := flag.String("run", "", "address of the run: kafka://HOST:PORT/RUN")
	workflow := flag.String("workflow", "", "workflow to play")
	folder := flag.String("schemas", "../../schemas/avsc", "folder of Headrace's .avsc files")
	alphabet := flag.String("encode", "", "only write the group of the Task on standard input, in this alphabet")
	flag.Parse()
	bootstrap, name, _ := strings.Cut(strings.TrimPrefix(*address, "kafka://"), "/")
	run := &Run{name: name, workflow: *workflow, head: -1, readable: map[[8]byte]*avro.Schema{}}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	context.AfterFunc(ctx, stop) // a second signal ends it at once
	err := run.readSchemas(*folder)
	if err == nil && *alphabet != "" {
		err = run.encodeOne(*alphabet)
	} else if err == nil && (name == "" || *workflow == "") {
		err = fmt.Errorf("give -run kafka://HOST:PORT/RUN and -workflow NAME")
	} else if err == nil {
		err = run.work(ctx, strings.Split(bootstrap, ","))
	}
	if err != nil {
		log.Fatal(err)
	}
}

// encodeOne plays the task on standard input, at version 0.
func (run *Run) encodeOne(alphabet string) error {
	run.policy, run.role, run.alphabet, run.temperature, run.head = "solver", "solver", alphabet, 1, 0
	message, _ := io.ReadAll(os.Stdin)
	_, group, err := run.conclude(message)
	os.Stdout.Write(group)
	return err
}

// work plays tasks until SIGTERM or an interrupt.
func (run *Run) work(ctx context.Context, seeds []string) (err error) {
	options := []kgo.Opt{
		kgo.SeedBrokers(seeds...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.WithLogger(kgo.BasicLogger(os.Stderr, kgo.LogLevelWarn, nil)),
	}
	run.client, err = kgo.NewClient(append(options, kgo.ConsumeTopics(run.name+".recipe"), kgo.KeepControlRecords())...)
	for err == nil && ctx.Err() == nil && !run.isReady {
		err = run.follow(ctx)
	}
	if err != nil || ctx.Err() != nil {
		return err
	}
	tasks, err := kgo.NewClient(append(options,
		kgo.ConsumerGroup(run.name+".rollout."+run.workflow), kgo.ConsumeTopics(run.name+".tasks."+run.workflow),
		kgo.ServerSideBalancer(), kgo.Balancers(kgo.RangeBalancer()), // as Headrace's own workers
		kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		return err
	}
	defer tasks.CloseAllowingRebalance() // leaves the consumer group
	log.Print("ready")
	for err == nil && ctx.Err() == nil {
		err = run.takeTurn(ctx, tasks)
	}
	log.Print("stopped")
	return err
}

// follow takes in new records of recipe and weights. It waits for some, or returns at once if there is no context.
func (run *Run) follow(ctx context.Context) (err error) {
	run.client.PollFetches(ctx).EachPartition(func(part kgo.FetchTopicPartition) {
		for _, message := range part.Records {
			switch found, unreadable := run.decode(message.Value); {
			case message.Attrs.IsControl() || err != nil: // the end of a transaction
			case unreadable != nil:
				log.Printf("%s offset %d: %v", part.Topic, message.Offset, unreadable)
			case part.Topic == run.name+".recipe":
				err = run.takeRevision(found)
			case found["run_id"] == run.id:
				run.head = max(run.head, found["version"].(int64))
			}
			run.isReady = run.isReady || run.head >= 0 && message.Offset+1 >= part.LastStableOffset
		}
	})
	return err
}

// takeRevision takes in a revision of the recipe, and the schemas that other writers of the run use.
func (run *Run) takeRevision(revision record) error {
	for _, text := range revision["schemas"].(record) {
		run.learn(text.(string)) // a text that is no schema changes nothing
	}
	text, first := revision["recipe"].(string), run.id == ""
	if text == "" || !first && run.id != revision["run_id"] {
		return nil // it has only schemas, or is of another run of this name
	}
	var recipe Recipe
	if err := json.Unmarshal([]byte(text), &recipe); err != nil {
		return err
	}
	workflow := recipe.Workflows[run.workflow]
	for role, policy := range workflow.Policies {
		run.role, run.policy = role, policy.(string)
		run.alphabet = recipe.Policies[run.policy].Alphabet
	}
	if len(workflow.Policies) != 1 || run.alphabet == "" {
		return fmt.Errorf("the recipe must have a workflow %q with one policy, which has an alphabet", run.workflow)
	}
	run.id, run.environment = revision["run_id"].(string), workflow.Env["use"].(string)
	run.temperature, run.partitions = recipe.Rollout.Temperature, recipe.Kafka.Partitions
	if first {
		run.client.AddConsumeTopics(run.name + ".weights." + run.policy)
	}
	return nil
}

// takeTurn plays waiting tasks, sends their groups, and commits the tasks once all groups are acknowledged. Tasks that
// it has taken are played to the end, also when the worker is being ended.
func (run *Run) takeTurn(ctx context.Context, client *kgo.Client) error {
	if err := run.follow(nil); err != nil {
		return err
	}
	wait, stop := context.WithTimeout(ctx, 100*time.Millisecond) // then it looks for new weights again
	defer stop()
	fetched := client.PollRecords(wait, 64)
	defer client.AllowRebalance()
	for _, failed := range fetched.Errors() {
		if !errors.Is(failed.Err, context.DeadlineExceeded) && !errors.Is(failed.Err, context.Canceled) {
			return fmt.Errorf("%s partition %d: %w", failed.Topic, failed.Partition, failed.Err)
		}
	}
	tasks := fetched.Records()
	var messages []*kgo.Record
	for _, task := range tasks {
		group, value, err := run.conclude(task.Value)
		if err != nil {
			return fmt.Errorf("%s partition %d offset %d: %w", task.Topic, task.Partition, task.Offset, err)
		}
		messages = append(messages, run.address(group, value))
	}
	if err := client.ProduceSync(context.Background(), messages...).FirstErr(); err != nil || len(tasks) == 0 {
		return err
	}
	return client.CommitRecords(kgo.PreCommitFnContext(context.Background(), clearMetadata), tasks...)
}

// clearMetadata leaves out the text beside a committed offset: Headrace's own workers write their state there.
func clearMetadata(request *kmsg.OffsetCommitRequest) error {
	for _, topic := range request.Topics {
		for i := range topic.Partitions {
			topic.Partitions[i].Metadata = nil
		}
	}
	return nil
}

// conclude plays the task in a message, and returns its group, plain and encoded.
func (run *Run) conclude(message []byte) (record, []byte, error) {
	task, err := run.decode(message)
	if err != nil {
		return nil, nil, err
	}
	if run.id != "" && task["run_id"] != run.id {
		return nil, nil, fmt.Errorf("the task is of run %s, not of %s: start this worker again", task["run_id"], run.id)
	}
	group := run.play(task)
	value, err := run.written.AppendSingleObject(nil, group)
	return group, value, err
}
