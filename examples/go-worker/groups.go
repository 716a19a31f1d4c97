package main

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/twmb/avro"
	"github.com/twmb/franz-go/pkg/kgo"
)

// record is an Avro record. Fields that it leaves out are written with the default of the schema.
type record = map[string]any

// readSchemas reads the .avsc files of the records that a worker needs; the last is the one that it writes.
func (run *Run) readSchemas(folder string) error {
	for _, name := range strings.Fields("RecipeRevision WeightsPublished Task TrajectoryGroup") {
		text, err := os.ReadFile(filepath.Join(folder, name+".avsc"))
		if err == nil {
			run.written, err = run.learn(string(text))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// learn adds a schema that the program can read.
func (run *Run) learn(text string) (*avro.Schema, error) {
	schema, err := avro.Parse(text)
	if err == nil {
		rabin := avro.NewRabin()
		rabin.Write(schema.Canonical())
		run.readable[[8]byte(binary.LittleEndian.AppendUint64(nil, rabin.Sum64()))] = schema
	}
	return schema, err
}

// decode reads a message (C3 01, the fingerprint of the writer's schema, and the Avro body).
func (run *Run) decode(message []byte) (found record, err error) {
	fingerprint, _, err := avro.SingleObjectFingerprint(message)
	schema := run.readable[fingerprint]
	if schema == nil {
		return nil, cmp.Or(err, fmt.Errorf("no schema with the fingerprint %x is known", fingerprint))
	}
	_, err = schema.DecodeSingleObject(message, &found)
	return found, err
}

// tokenize returns the token ids of a text and of <eos>. The tokens are <pad>, <eos>, and the alphabet in order.
func tokenize(alphabet, text string) (ids []int32, err error) {
	for _, character := range text {
		before, _, ok := strings.Cut(alphabet, string(character))
		if !ok {
			return nil, fmt.Errorf("the policy's alphabet lacks %q", character)
		}
		ids = append(ids, int32(len([]rune(before))+2))
	}
	return append(ids, 1), nil
}

// tensor returns numbers as the bytes of a field that holds them.
func tensor(numbers any) []byte {
	data, _ := binary.Append(nil, binary.LittleEndian, numbers)
	return data
}

// answer returns a trajectory, as of a policy that draws each token from all with the same probability.
func (run *Run) answer(payload string, reward float64) (record, error) {
	var problem struct{ Prompt, Answer string }
	if err := json.Unmarshal([]byte(payload), &problem); err != nil {
		return nil, err
	}
	if reward == 0 {
		problem.Answer += "1" // another number
	}
	ids, err := tokenize(run.alphabet, problem.Prompt+`\boxed{`+problem.Answer+`}`)
	if err != nil {
		return nil, err
	}
	read := len([]rune(problem.Prompt))
	said, logprobs := len(ids)-read, make([]float32, len(ids)) // 0 on tokens of the prompt
	for i := read; i < len(ids); i++ {
		logprobs[i] = float32(-math.Log(float64(len([]rune(run.alphabet)) + 2)))
	}
	sampling := record{"temperature": run.temperature, "stop_ids": []int64{1}}
	return record{"reward": reward, "reward_parts": record{"boxed": 1.0}, "sequences": []record{{
		"ids": tensor(ids), "logprobs": tensor(logprobs), "role": run.role,
		"version_runs": tensor([]int32{-1, int32(read), int32(run.head), int32(said)}),
		"spans": []record{
			{"kind": "prompt", "length": read},
			{"kind": "generated", "length": said, "finish_reason": "stop", "sampling": sampling},
		},
	}}}, nil
}

// play returns the group of a task, half of its answers right. An episode that cannot be played becomes a failure.
func (run *Run) play(task record) record {
	group := record{"policy": run.policy, "head_version": run.head, "env": run.environment, "engine": "go-worker"}
	for _, name := range strings.Fields("run_id stream number attempt purpose revision task_id tier n_asked") {
		group[name] = task[name]
	}
	started, ids, trajectories, failures := time.Now(), []string{}, []record{}, []record{}
	for sample := range task["n_asked"].(int64) {
		trajectory, err := run.answer(task["payload"].(string), float64((task["seed"].(int64)+sample)%2))
		if err != nil {
			failures = append(failures, record{"sample": sample, "reason": "error", "detail": err.Error()})
			continue
		}
		id := fmt.Sprintf("%s:%d:%d", task["stream"], task["number"], sample)
		ids, trajectory["id"] = append(ids, id), id
		trajectories = append(trajectories, trajectory)
	}
	if len(trajectories) == 0 {
		group["reason"] = "failed"
	}
	group["episode_ids"], group["trajectories"], group["failures"] = ids, trajectories, failures
	group["started_ms"], group["finished_ms"] = started.UnixMilli(), time.Now().UnixMilli()
	return group
}

// address returns the Kafka record of a group. Its partition, key and headers name the task.
func (run *Run) address(group record, value []byte) *kgo.Record {
	stamp := maps.Clone(group)
	stamp["use"], stamp["min_version"], stamp["max_version"] = 0, run.head, run.head
	if group["reason"] != nil {
		stamp["min_version"], stamp["max_version"] = -1, -1 // no token was sampled
	}
	message := &kgo.Record{
		Topic: run.name + ".trajectories." + run.policy, Partition: int32(group["number"].(int64) % run.partitions),
		Key: fmt.Appendf(nil, "%s:%d", group["stream"], group["number"]), Value: value,
	}
	for _, name := range strings.Fields(
		"run_id stream number attempt use purpose revision policy min_version max_version head_version") {
		message.Headers = append(message.Headers, kgo.RecordHeader{Key: name, Value: fmt.Append(nil, stamp[name])})
	}
	return message
}
