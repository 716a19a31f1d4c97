"""A small world of all that a run consists of, explored exhaustively.

**The world** is a feeder, two workers, two curators, a trainer, an object store and a log of topics with two
partitions. What decides in it is the production code itself: `Feeder` with its `FeedState`, `Pacing` and `Overdue`;
`TaskIntake` with ledgers and queue, `RunFollower`, `WeightLoader`, `Admission`; `GroupConsumer` with
`CuratorPartition`, `Dedupe` and a chain; `Trainer` with `Scheduler`, window, evictions,
`VersionUploader`, `VersionAnnouncer`; `history` and `resume`; the run loop itself. Of the model are:

- `broker.py`: topics, transactions (read committed, fenced by transactional id), consumer groups (fenced by member).
- `clients.py`: what stands in for confluent-kafka's consumer and for `TransactionalWriter`.
- `store.py`: objects by name. Some can be lost, or all be frozen.
- `learner.py`: a learner whose weights are the hash of what it was trained on, and the pipeline without threads.
- `processes.py`, `worker.py`: the adaptors. One process is one component, and its *actions* are turns that nobody
  else can see into.
- `run.py`, `trainer.py`: the run's recipe and records, and what a trainer has instead of torch.
- `seams.py`: every production name that is replaced while the model runs.
- `frozen.py`: processes and broker as values: bytes to go on from, and a canonical key to know them by.
- `world.py`: a state is a broker and its processes; a step is one action of one of them, or a fault.
- `explore.py`: breadth first over all steps; a state that was seen is not looked at again.
  `sketch` is the quick way: along one fair schedule, with a fault at each point of it.
- `promises.py`: what must hold in each state, and what must hold when nothing moves any more.
- `audit.py`: the production audit over the model's log, as one of the promises: it closes in every state of a run that
  nobody has harmed, and names a harm that no protocol prevents while the run goes on.
- `commands.py`: `swap` and `up --new-recipe`, one dealing with the log at a time; two of them race.

**Time** is a number. It moves by a `tick` only where nothing else can happen, so a wait is never why something else
comes late; that it does is shown by the order of steps.

**To add a fault**: give it a name in `faults.py`, with the states in which it can happen and what it does to one. The
explorer lets it happen in each. **To put an old bug back**: a function that takes a pytest `MonkeyPatch`, in
`test_findings.py`.
"""
