-- The examples of the query page, each below its title.

-- Stages: what a micro-batch costs
SELECT stage, cycles, ipu FROM stage_cycles;

-- Operators by ATen
SELECT aten, sum(cycles) AS cycles, count(*) AS operators
FROM op_cycles GROUP BY aten ORDER BY cycles DESC LIMIT 30;

-- The most expensive operators
SELECT name, cycles, direction, block FROM op_cycles LIMIT 30;

-- Program steps by type
SELECT type, sum(cycles) AS cycles, count(*) AS steps
FROM program_steps GROUP BY type ORDER BY cycles DESC;

-- Tensors that travel most between IPUs
SELECT name, sum(bytes) AS bytes, count(*) AS moves
FROM moved_tensors WHERE source >= 0 AND target >= 0
GROUP BY name ORDER BY bytes DESC LIMIT 30;

-- The largest variables
SELECT name, bytes, role, category, ipu FROM variables ORDER BY bytes DESC LIMIT 30;

-- Memory left on the fullest tile
SELECT ipu, free_bytes, fullest_tile FROM tile_headroom;

-- When stage 0 works on which micro-batch
SELECT start, micro_batch, direction, "end" - start AS cycles
FROM stage_micro_batches WHERE run = 0 AND iteration = 0 AND stage = 0 ORDER BY start;
