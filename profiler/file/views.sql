-- The views of profile.pop: plain names over its tables.
--
-- The comment above a view says what it has; '(vendor)' begins that of one that is named as in the
-- vendor's files (docs/libpva.md#files-of-a-run). LIMIT -1 keeps SQLite from flattening
-- execution_steps into a query that joins it, which would compare every pair.

-- the table that it was before format 4: a step has the type and the name of its program
CREATE VIEW program_steps(id, ipu, position, program, body, op, type, name, cycles, compute_set,
  tile_cycles, bytes_in, bytes_out, purpose, tensor, code) AS
SELECT id, ipu, position, program, body, op,
  (SELECT type FROM program_tree WHERE program_tree.id = s.program) AS type,
  (SELECT name FROM program_tree WHERE program_tree.id = s.program) AS name,
  cycles, compute_set, tile_cycles, bytes_in, bytes_out, purpose, tensor, code
FROM program_step_rows s;

-- what one micro-batch costs on each stage
CREATE VIEW stage_cycles(stage, ipu, cycles, forward_cycles, backward_cycles) AS
SELECT id, ipu, forward_cycles + backward_cycles, forward_cycles, backward_cycles
FROM stages
ORDER BY id;

-- what one micro-batch costs in each Block
CREATE VIEW block_cycles(block, name, stage, ipu, cycles, forward_cycles, backward_cycles) AS
SELECT id, name, stage, ipu, forward_cycles + backward_cycles, forward_cycles, backward_cycles
FROM blocks
ORDER BY id;

-- operators, the most expensive first
CREATE VIEW op_cycles(op, name, aten, block, direction, cycles, flops) AS
SELECT ops.id, ops.name, aten, blocks.name, direction, cycles, flops
FROM ops
LEFT JOIN blocks ON blocks.id = ops.block
ORDER BY cycles DESC;

-- what the tiles do in a program step; bytes are sums over tiles
CREATE VIEW step_activity(step, active_tiles, first_cycles, last_cycles, tile_balance,
  active_tile_balance, bytes_in, bytes_out) AS
SELECT s.id, active_tiles, iif(first_cycles < 0, s.cycles, first_cycles), iif(last_cycles < 0,
  s.cycles, last_cycles), tile_balance, active_tile_balance, received, sent
FROM program_steps s
JOIN activities a ON a.tile_cycles = coalesce(s.tile_cycles, -1) AND a.bytes_in =
  coalesce(s.bytes_in, -1) AND a.bytes_out = coalesce(s.bytes_out, -1);

-- the steps of each body in order; cycles relative to its start, stop of the last is -1
CREATE VIEW body_steps(body, position, step, start, stop) AS
SELECT b.body, p.position, b.first_step + p.offset, p.start, p.stop
FROM body_patterns b
JOIN pattern_steps p ON p.pattern = b.pattern;

-- the steps of each body, those of loops as often as they run: what to sum, where sum(cycles) of
-- program_steps counts each once
CREATE VIEW program_step_cycles(step, ipu, body, op, name, times, cycles) AS
SELECT s.id, s.ipu, s.body, s.op, s.name, b.times, b.times * s.cycles
FROM program_steps s
JOIN (SELECT body, step, count(*) AS times
FROM body_steps
GROUP BY body, step) b ON b.body = s.body AND b.step = s.id;

-- how long each profiled run took
CREATE VIEW run_cycles(run, name, iterations, start, cycles) AS
SELECT runs.id, name, iterations, cycle_start, iterations * iteration_cycles
FROM runs
JOIN traces ON traces.id = runs.trace
ORDER BY runs.id;

-- what fills the memory all the time
CREATE VIEW always_live_bytes(ipu, category, role, bytes) AS
SELECT ipu, category, role, sum(bytes)
FROM variables
WHERE always_live
GROUP BY ipu, category, role;

-- every step of every run; external syncs last as long as their IPU waits, waited of it
CREATE VIEW execution_steps(id, run, iteration, ipu, micro_batch, pipeline_cycle, step, start,
  cycles, waited) AS
SELECT i.first_step + t.first_step + b.position, i.run, i.iteration, t.ipu, t.micro_batch,
  t.pipeline_cycle, b.step, i.start + t.start + b.start, iif(b.stop < 0, t.end - t.start, b.stop)
  - b.start, t.waited
FROM iterations i
JOIN tasks t ON t.trace = i.trace
JOIN body_steps b ON b.body = t.body
LIMIT -1;

-- when each stage worked on which micro-batch
CREATE VIEW stage_micro_batches(run, iteration, stage, direction, micro_batch, ipu, start, end) AS
SELECT i.run, i.iteration, b.stage, b.direction, t.micro_batch, t.ipu, i.start + t.start, i.start
  + t.end
FROM iterations i
JOIN tasks t ON t.trace = i.trace
JOIN bodies b ON b.id = t.body
WHERE b.stage >= 0;

-- the fullest tile of each IPU, what it uses; free_bytes below 0: its extent does not fit
CREATE VIEW tile_headroom(ipu, fullest_tile, bytes, free_bytes) AS
SELECT ipu, tile, iif(overflow > 0, total, total_excluding_gaps), bytes_per_tile - iif(overflow >
  0, total, total_excluding_gaps)
FROM (SELECT *, row_number() OVER (PARTITION BY ipu
ORDER BY overflow DESC, total_excluding_gaps DESC, tile) AS place
FROM tile_memory)
JOIN target
WHERE place = 1;

-- (vendor) executed steps, numbered through all runs
CREATE VIEW steps(id, type, program, compute_set) AS
SELECT e.id, p.type, coalesce(c.program, p.program), p.compute_set
FROM execution_steps e
JOIN program_steps p ON p.id = e.step
LEFT JOIN program_steps c ON c.id = p.code;

-- (vendor) executed steps: a step is of one IPU; active times are relative to cycles_base
CREATE VIEW steps_by_ipu(step_id, ipu, cycles, active_tiles, cycles_base, active_cycles_from_min,
  active_cycles_from_max, active_cycles_to_min, active_cycles_to_max, data_in, data_out,
  tile_balance, active_tile_balance) AS
SELECT e.id, e.ipu, e.cycles, a.active_tiles, e.start, 0, 0, min(a.first_cycles + e.waited,
  e.cycles), min(a.last_cycles + e.waited, e.cycles), a.bytes_in, a.bytes_out, a.tile_balance,
  a.active_tile_balance
FROM execution_steps e
JOIN step_activity a ON a.step = e.step;

-- (vendor) cycles of each run
CREATE VIEW execution_cycle_totals(run, total) AS
SELECT runs.id, iterations * iteration_cycles
FROM runs
JOIN traces ON traces.id = runs.trace;

-- (vendor) variables on each tile (counted over all IPUs); category and name are ids
CREATE VIEW vars_info(id, tile, size_bytes, category, name, always_live) AS
SELECT v.id, v.ipu * target.tiles_per_ipu + m.tile, r.bytes, c.id, v.id, v.always_live
FROM target
JOIN variables v
JOIN var_categories c ON c.name = v.category
JOIN tile_runs r ON r.vector = v.tile_bytes
JOIN tile_memory m ON m.ipu = v.ipu AND m.tile BETWEEN r.first_tile AND r.last_tile;

-- (vendor) names of variables
CREATE VIEW vars_string_table(id, string) AS
SELECT id, name
FROM variables;

-- (vendor) bytes on each tile (counted over all IPUs); total, its extent, includes gaps
CREATE VIEW memory_by_tile(tile, ipu, total, total_excluding_gaps, always_live, not_always_live,
  overflow) AS
SELECT ipu * tiles_per_ipu + tile, ipu, total, total_excluding_gaps, always_live,
  total_excluding_gaps - always_live, overflow
FROM tile_memory
JOIN target;

-- (vendor) programs, operators in them as PopART names them; those that are the same code once
CREATE VIEW programs(id, name) AS
SELECT p.id, CASE WHEN p.type = 'Sync' THEN CASE s.purpose WHEN 'external sync' THEN 'External'
  ELSE 'Internal' END WHEN o.id IS NOT NULL THEN o.popart_name || substr(p.name, length(o.name) +
  1) ELSE coalesce(w.popart_name, p.name) END
FROM program_tree p
LEFT JOIN program_steps s ON s.program = p.id
LEFT JOIN ops o ON o.id = s.op AND substr(p.name, 1, length(o.name)) = o.name
LEFT JOIN (SELECT name, popart_name, min(id)
FROM ops
GROUP BY name) w ON w.name = p.name AND p.type = 'Sequence'
WHERE s.id IS NULL OR s.code < 0 OR s.code = s.id;

-- (vendor) compute sets, operators in them as PopART names them
CREATE VIEW compute_sets(compute_set, name) AS
SELECT c.id, CASE WHEN o.id IS NOT NULL THEN o.popart_name || substr(c.name, length(o.name) + 1)
  ELSE c.name END
FROM compute_set_info c
LEFT JOIN ops o ON o.id = c.op AND substr(c.name, 1, length(o.name)) = o.name;
