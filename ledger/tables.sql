-- The small records of one run as rows; payloads never enter. Positions are written in the same transaction as rows,
-- so no record is in it twice. A change of this file makes every ledger anew.

CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

-- position: next offset that is not in the ledger. at_ms: time of the newest record.
CREATE TABLE partition (
    id INTEGER PRIMARY KEY, cluster TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL,
    position INTEGER NOT NULL, at_ms INTEGER NOT NULL DEFAULT 0, UNIQUE (cluster, topic, partition)
);

-- A verdict on a group or trajectory. decides: a curator's decision on the first use of a group, exactly one for each.
-- tokens: generated, of all members. rewards: float64 of each member; lengths: int64. reward_*: of the finite rewards.
-- group_digest: of the record that the worker wrote; empty in records of older builds.
CREATE TABLE outcome (
    id INTEGER PRIMARY KEY, partition_id INTEGER NOT NULL, offset INTEGER NOT NULL, at_ms INTEGER NOT NULL,
    variant TEXT NOT NULL, stream TEXT NOT NULL, number INTEGER NOT NULL, use INTEGER NOT NULL, level TEXT NOT NULL,
    verdict TEXT NOT NULL, reason TEXT NOT NULL, component TEXT NOT NULL, decides INTEGER NOT NULL,
    succeeds INTEGER NOT NULL, revision INTEGER NOT NULL, min_version INTEGER NOT NULL, head_version INTEGER NOT NULL,
    n_asked INTEGER NOT NULL, tokens INTEGER NOT NULL, samples INTEGER NOT NULL, reward_total REAL, reward_count INTEGER NOT NULL,
    reward_low REAL, reward_high REAL, rewards BLOB NOT NULL, lengths BLOB NOT NULL,
    group_digest TEXT NOT NULL
);
CREATE INDEX outcome_of_number ON outcome (variant, stream, number);
CREATE INDEX outcome_too_late ON outcome (variant, tokens)
    WHERE component = 'train' AND use = 0 AND verdict IN ('expired', 'surplus');
CREATE INDEX outcome_discarded ON outcome (variant, stream, at_ms)
    WHERE level = 'group' AND use = 0 AND verdict <> 'kept';
CREATE INDEX outcome_of_trajectory ON outcome (variant) WHERE level = 'trajectory';
CREATE INDEX outcome_at_time ON outcome (variant, stream, at_ms);

-- Episodes of a group with the same error, as in the group's outcome. kind: what makes errors the same.
CREATE TABLE episode_error (
    id INTEGER PRIMARY KEY, outcome_id INTEGER NOT NULL, variant TEXT NOT NULL, stream TEXT NOT NULL,
    number INTEGER NOT NULL, task_id TEXT NOT NULL, at_ms INTEGER NOT NULL, kind TEXT NOT NULL, reason TEXT NOT NULL,
    detail TEXT NOT NULL, at TEXT NOT NULL, role TEXT NOT NULL, turn INTEGER NOT NULL, episodes INTEGER NOT NULL,
    has_traceback INTEGER NOT NULL
);
CREATE INDEX error_at_time ON episode_error (variant, stream, at_ms);
CREATE INDEX error_of_outcome ON episode_error (outcome_id);
-- Sums over them. first_id, traced_id: of the first, and of the first whose group holds a traceback.
CREATE TABLE error_kind (
    variant TEXT NOT NULL, stream TEXT NOT NULL, kind TEXT NOT NULL, episodes INTEGER NOT NULL,
    first_id INTEGER NOT NULL, traced_id INTEGER, PRIMARY KEY (variant, stream, kind)
) WITHOUT ROWID;

-- Sums over the outcomes that decide.
CREATE TABLE decided (
    variant TEXT NOT NULL, stream TEXT NOT NULL, revision INTEGER NOT NULL, head_version INTEGER NOT NULL,
    groups INTEGER NOT NULL, kept INTEGER NOT NULL, asked INTEGER NOT NULL, samples INTEGER NOT NULL,
    tokens INTEGER NOT NULL, rewarded INTEGER NOT NULL, reward_total REAL, reward_count INTEGER NOT NULL,
    reward_low REAL, reward_high REAL, succeeded_ms INTEGER, curated_ms INTEGER NOT NULL, first_ms INTEGER NOT NULL,
    PRIMARY KEY (variant, stream, revision, head_version)
) WITHOUT ROWID;

-- A record of a trainer: the batch of a version, or (version -1) only evictions and positions.
-- digest: of what it says, from which its log_hash is made; both are empty in records of older builds.
CREATE TABLE batch (
    id INTEGER PRIMARY KEY, partition_id INTEGER NOT NULL, offset INTEGER NOT NULL, at_ms INTEGER NOT NULL,
    variant TEXT NOT NULL, version INTEGER NOT NULL, created_ms INTEGER NOT NULL, n_groups INTEGER NOT NULL,
    off_policy_gap REAL, metrics TEXT NOT NULL, positions TEXT NOT NULL, digest TEXT NOT NULL, log_hash TEXT NOT NULL
);
CREATE INDEX batch_of_version ON batch (variant, version);

-- A use of a group in a batch; curated_*: where the trainer read it.
CREATE TABLE trained (
    id INTEGER PRIMARY KEY, batch_id INTEGER NOT NULL, variant TEXT NOT NULL, stream TEXT NOT NULL,
    number INTEGER NOT NULL, use INTEGER NOT NULL, version INTEGER NOT NULL, curated_partition INTEGER NOT NULL,
    curated_offset INTEGER NOT NULL
);
CREATE INDEX trained_of_batch ON trained (batch_id);
CREATE INDEX trained_of_number ON trained (variant, stream, number);

-- A curated group that left the window untrained.
CREATE TABLE eviction (
    id INTEGER PRIMARY KEY, batch_id INTEGER NOT NULL, variant TEXT NOT NULL, verdict TEXT NOT NULL,
    stream TEXT NOT NULL, number INTEGER NOT NULL, use INTEGER NOT NULL
);
CREATE INDEX eviction_of_batch ON eviction (batch_id);

-- Headers of tasks, delivered groups and curated groups; only an audit reads them. waits: no worker has read it yet.
-- reached: a curator may have read it. due: one is known to have read it.
-- digest: of the record's value.
CREATE TABLE task (
    id INTEGER PRIMARY KEY, partition_id INTEGER NOT NULL, offset INTEGER NOT NULL, stream TEXT NOT NULL,
    number INTEGER NOT NULL, waits INTEGER NOT NULL
);
CREATE TABLE delivery (
    id INTEGER PRIMARY KEY, partition_id INTEGER NOT NULL, offset INTEGER NOT NULL, policy TEXT NOT NULL,
    stream TEXT NOT NULL, number INTEGER NOT NULL, reached INTEGER NOT NULL, due INTEGER NOT NULL, digest TEXT NOT NULL
);
CREATE TABLE curated (
    id INTEGER PRIMARY KEY, partition_id INTEGER NOT NULL, offset INTEGER NOT NULL, variant TEXT NOT NULL,
    stream TEXT NOT NULL, number INTEGER NOT NULL, use INTEGER NOT NULL, revision INTEGER NOT NULL,
    min_version INTEGER NOT NULL, max_version INTEGER NOT NULL, sent_back INTEGER NOT NULL,
    digest TEXT NOT NULL
);
CREATE INDEX curated_of_number ON curated (variant, stream, number);

-- An event of a weights topic. publishes: whether it makes a version. value: the record.
CREATE TABLE weights (
    id INTEGER PRIMARY KEY, partition_id INTEGER NOT NULL, offset INTEGER NOT NULL, variant TEXT NOT NULL,
    version INTEGER NOT NULL, kind TEXT NOT NULL, publishes INTEGER NOT NULL, bytes INTEGER NOT NULL, full_bytes REAL,
    density REAL, encode_s REAL, upload_s REAL, created_ms INTEGER NOT NULL, value BLOB NOT NULL
);
CREATE INDEX weights_of_version ON weights (variant, version);

CREATE TABLE evaluation (id INTEGER PRIMARY KEY, policy TEXT NOT NULL, value BLOB NOT NULL);
CREATE TABLE revision (id INTEGER PRIMARY KEY, revision INTEGER NOT NULL, created_ms INTEGER NOT NULL, value BLOB NOT NULL);

CREATE TABLE scaling (id INTEGER PRIMARY KEY, pool TEXT NOT NULL, value BLOB NOT NULL);

-- The newest status of a worker; seen_ms: by the clock of this machine if it came while a process watched.
CREATE TABLE worker (
    key BLOB PRIMARY KEY, name TEXT NOT NULL, state TEXT NOT NULL, seen_ms INTEGER NOT NULL, value BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE worker_life (
    worker TEXT NOT NULL, started_ms INTEGER NOT NULL, tokens INTEGER NOT NULL, wasted_tokens INTEGER NOT NULL,
    PRIMARY KEY (worker, started_ms)
) WITHOUT ROWID;
CREATE TABLE served (worker TEXT NOT NULL, policy TEXT NOT NULL, version INTEGER NOT NULL, PRIMARY KEY (worker, policy)) WITHOUT ROWID;
CREATE TABLE skew (policy TEXT PRIMARY KEY, greatest INTEGER NOT NULL) WITHOUT ROWID;
-- How a worker took a version.
CREATE TABLE taken (
    id INTEGER PRIMARY KEY, policy TEXT NOT NULL, worker TEXT NOT NULL, version INTEGER NOT NULL, fetch_s REAL, verify_s REAL,
    apply_s REAL, pause_s REAL, UNIQUE (policy, worker, version)
);

-- concludes: whether it concludes a number, or opens it again. source_*: place of the record that it is about.
-- min_version: of the record's tokens, by its headers; -1 if they do not tell it.
CREATE TABLE dead_letter (
    id INTEGER PRIMARY KEY, partition_id INTEGER NOT NULL, offset INTEGER NOT NULL, at_ms INTEGER NOT NULL,
    component TEXT NOT NULL, topic TEXT NOT NULL, reason TEXT NOT NULL, detail TEXT NOT NULL, kind TEXT NOT NULL,
    policy TEXT NOT NULL, stream TEXT NOT NULL, number INTEGER NOT NULL, redrives INTEGER NOT NULL,
    concludes INTEGER NOT NULL, created_ms INTEGER NOT NULL, source_partition INTEGER NOT NULL,
    source_offset INTEGER NOT NULL, use INTEGER NOT NULL, min_version INTEGER NOT NULL, value_bytes INTEGER NOT NULL,
    cut_bytes INTEGER NOT NULL
);
CREATE INDEX redrive_of ON dead_letter (redrives) WHERE reason = 'redriven';
-- A dead letter (1) or redrive (-1) for each policy and shadow whose number it concludes or opens again.
CREATE TABLE death (
    id INTEGER PRIMARY KEY, variant TEXT NOT NULL, stream TEXT NOT NULL, number INTEGER NOT NULL, use INTEGER NOT NULL,
    times INTEGER NOT NULL, of_task INTEGER NOT NULL
);
CREATE INDEX death_of_number ON death (variant, stream, number);

-- Messages of the feeder's newest snapshot and its pieces, in the order in which they are read again.
CREATE TABLE feeder_state (id INTEGER PRIMARY KEY, offset INTEGER NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL);

-- Counts over blocks of consecutive numbers: those of blocks that are not dirty hold.
CREATE TABLE dirty (
    variant TEXT NOT NULL, stream TEXT NOT NULL, block INTEGER NOT NULL, PRIMARY KEY (variant, stream, block)
) WITHOUT ROWID;
CREATE TABLE tally (
    variant TEXT NOT NULL, stream TEXT NOT NULL, block INTEGER NOT NULL, is_replay INTEGER NOT NULL,
    kept INTEGER NOT NULL, trained INTEGER NOT NULL, dead INTEGER NOT NULL, concluded INTEGER NOT NULL,
    untrained INTEGER NOT NULL, doubled INTEGER NOT NULL, PRIMARY KEY (variant, stream, block, is_replay)
) WITHOUT ROWID;
CREATE TABLE tally_of_reason (
    variant TEXT NOT NULL, stream TEXT NOT NULL, block INTEGER NOT NULL, conclusion TEXT NOT NULL, groups INTEGER NOT NULL,
    PRIMARY KEY (variant, stream, block, conclusion)
) WITHOUT ROWID;
