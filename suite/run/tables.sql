create table runs (
    id integer primary key, run text not null unique, pattern text not null, config text not null, data text not null,
    code text not null, status text not null check (status in ('running', 'done', 'failed')), error text,
    versions text not null, machine text not null, device text not null, threads integer not null,
    started text not null, ended text, seconds real, tokens_per_s real, peak_memory_mib real, parameters integer,
    spent text,                                                          -- JSON: seconds of the training by part
    numbers text, digest text);                                          -- hashes: of its metrics, of this row
create table evaluations (
    id integer primary key, run_id integer not null references runs on delete cascade, evaluation text not null,
    name text not null, parameters text not null, seconds real not null, ended text not null,
    array_count integer, numbers text, digest text,
    unique (run_id, evaluation));
create table metrics (
    run_id integer not null references runs on delete cascade,
    evaluation_id integer references evaluations on delete cascade,      -- null: of the training
    measure text not null, split text not null, variant text not null, length integer, position integer, layer integer,
    step integer, value real not null);
create table arrays (
    evaluation_id integer not null references evaluations on delete cascade, name text not null, dtype text not null,
    shape text not null, data blob not null, digest text,
    primary key (evaluation_id, name));
create index metrics_of_a_run on metrics (run_id, evaluation_id);
create index metrics_of_an_evaluation on metrics (evaluation_id);
create index runs_by_status on runs (status);
