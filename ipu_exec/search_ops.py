"""PopTorch's search operators: farthest and nearest points, and likeliest labels (CTC)."""

from __future__ import annotations

import math
from itertools import pairwise

import torch

from ipu_exec.base.checks import check_tensor
from ipu_exec.errors import UsageError

Batch = list[int] | torch.Tensor


def fps(
    src: torch.Tensor, ptr: list[int], ratio: float = 0.5, random_start: bool = False
) -> torch.Tensor:
    """Farthest point sampling (Qi et al., PointNet++, arXiv:1706.02413): indices of rows.

    Of the n rows of each sample it selects ``ceil(ratio * n)``, each the farthest from the
    previous ones, from the first (or a random one) on. ``src`` is [points, features]; sample b
    has the rows ``ptr[b]`` to ``ptr[b + 1]``.
    """
    check_tensor("fps", src)
    if not isinstance(ptr, list) or len(ptr) < 2 or not all(isinstance(item, int) for item in ptr):
        raise UsageError(f"fps: ptr must be a list of at least 2 integers, not {ptr!r}")
    if not isinstance(ratio, float) or not 0 < ratio <= 1:
        raise UsageError(f"fps: ratio must be of float type, above 0 and at most 1, not {ratio!r}")
    if not isinstance(random_start, bool):
        raise UsageError(f"fps: random_start must be of bool type, not {random_start!r}")
    return _fps(src.detach(), ptr, ratio, random_start)


@torch.library.custom_op("ipu_exec::fps", mutates_args=())
def _fps(src: torch.Tensor, ptr: list[int], ratio: float, random_start: bool) -> torch.Tensor:
    chosen: list[torch.Tensor] = []
    for start, end in pairwise(ptr):
        points = src[start:end].reshape(end - start, -1)
        current = int(torch.randint(end - start, ())) if random_start and end > start else 0
        distance = torch.full((end - start,), torch.inf)
        for _ in range(_samples(start, end, ratio)):
            chosen.append(torch.tensor(start + current))
            distance = torch.minimum(distance, (points - points[current]).float().square().sum(1))
            current = int(distance.argmax())
    return torch.stack(chosen) if chosen else torch.zeros(0, dtype=torch.int64)


@_fps.register_fake
def _(src: torch.Tensor, ptr: list[int], ratio: float, random_start: bool) -> torch.Tensor:
    count = sum(_samples(start, end, ratio) for start, end in pairwise(ptr))
    return src.new_empty(count, dtype=torch.int64)


def _samples(start: int, end: int, ratio: float) -> int:
    return math.ceil(ratio * (end - start))


def nearest(
    x: torch.Tensor, y: torch.Tensor, batch_x: Batch | None = None, batch_y: Batch | None = None
) -> torch.Tensor:
    """For each row of ``x`` the index of the nearest row of ``y``.

    ``batch_x`` and ``batch_y`` give each row its sample (sorted); only rows of one sample are
    compared. If only one is passed, the others' rows are all of sample 0.
    """
    check_tensor("nearest", x, y)
    if batch_x is None and batch_y is not None:
        batch_x = [0] * x.shape[0]
    if batch_y is None and batch_x is not None:
        batch_y = [0] * y.shape[0]
    return _nearest(
        x.detach(),
        y.detach(),
        _batch(batch_x, x.shape[0], "batch_x"),
        _batch(batch_y, y.shape[0], "batch_y"),
    )


def _batch(batch: Batch | None, rows: int, name: str) -> torch.Tensor | None:
    if batch is None:
        return None
    if not isinstance(batch, (list, torch.Tensor)):
        raise UsageError(f"nearest: {name} is a list or a tensor, not {type(batch).__name__}")
    batches = torch.tensor(batch) if isinstance(batch, list) else batch
    if tuple(batches.shape) != (rows,):
        raise UsageError(
            f"nearest: {name} has the shape {tuple(batches.shape)}, but there are {rows} rows"
        )
    return batches


@torch.library.custom_op("ipu_exec::nearest", mutates_args=())
def _nearest(
    x: torch.Tensor, y: torch.Tensor, batch_x: torch.Tensor | None, batch_y: torch.Tensor | None
) -> torch.Tensor:
    distance = torch.cdist(x.reshape(x.shape[0], -1).float(), y.reshape(y.shape[0], -1).float())
    if batch_x is not None and batch_y is not None:
        distance = distance.masked_fill(batch_x[:, None] != batch_y[None, :], torch.inf)
    return distance.argmin(1)


@_nearest.register_fake
def _(
    x: torch.Tensor, y: torch.Tensor, batch_x: torch.Tensor | None, batch_y: torch.Tensor | None
) -> torch.Tensor:
    return x.new_empty(x.shape[0], dtype=torch.int64)


def ctc_beam_search_decoder(
    probs: torch.Tensor,
    lengths: torch.Tensor,
    blank: int = 0,
    beam_width: int = 100,
    top_paths: int = 1,
) -> list[torch.Tensor]:
    """The likeliest label sequences, by prefix beam search (after Graves and Jaitly, 2014).

    ``probs``: log probabilities [time, batch, classes]; ``lengths``: time steps of each entry
    [batch]. Repeats and blanks are merged. Returns the paths' log probabilities [batch, paths],
    their lengths [batch, paths] and labels [batch, paths, time], padded with ``blank`` beyond a
    path's length. A path that does not exist has the log probability -inf and the length 0.
    """
    check_tensor("ctc_beam_search_decoder", probs, lengths)
    if probs.dim() != 3 or tuple(lengths.shape) != (probs.shape[1],):
        raise UsageError(
            "ctc_beam_search_decoder: probs is [time, batch, classes] and lengths [batch], not"
            f" {tuple(probs.shape)} and {tuple(lengths.shape)}"
        )
    if not 0 <= blank < probs.shape[2] or not 1 <= top_paths <= beam_width:
        raise UsageError(
            f"ctc_beam_search_decoder: blank {blank} is one of {probs.shape[2]} classes and"
            f" top_paths {top_paths} at least 1 and at most beam_width {beam_width}"
        )
    return list(_ctc(probs.detach(), lengths, blank, beam_width, top_paths))


@torch.library.custom_op("ipu_exec::ctc_beam_search_decoder", mutates_args=())
def _ctc(
    probs: torch.Tensor, lengths: torch.Tensor, blank: int, beam_width: int, top_paths: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    steps, batch, _ = probs.shape
    scores = torch.full((batch, top_paths), -math.inf)
    sizes = torch.zeros((batch, top_paths), dtype=torch.int32)
    labels = torch.full((batch, top_paths, steps), blank, dtype=torch.int32)
    for entry in range(batch):
        rows = probs[: int(lengths[entry]), entry].float().tolist()
        for rank, (path, score) in enumerate(_beams(rows, blank, beam_width)[:top_paths]):
            scores[entry, rank], sizes[entry, rank] = score, len(path)
            labels[entry, rank, : len(path)] = torch.tensor(path, dtype=torch.int32)
    return scores, sizes, labels


@_ctc.register_fake
def _(
    probs: torch.Tensor, lengths: torch.Tensor, blank: int, beam_width: int, top_paths: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    steps, batch, _ = probs.shape
    return (
        probs.new_empty((batch, top_paths), dtype=torch.float32),
        probs.new_empty((batch, top_paths), dtype=torch.int32),
        probs.new_empty((batch, top_paths, steps), dtype=torch.int32),
    )


def _beams(rows: list[list[float]], blank: int, width: int) -> list[tuple[tuple[int, ...], float]]:
    """Paths, likeliest first, with log probabilities of ending in a blank and in a label."""
    none = -math.inf
    beams: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, none)}
    for row in rows:
        extended: dict[tuple[int, ...], tuple[float, float]] = {}

        def add(
            path: tuple[int, ...], ends_blank: float, ends_label: float, extended: dict = extended
        ) -> None:
            old = extended.get(path, (none, none))
            extended[path] = (_log_add(old[0], ends_blank), _log_add(old[1], ends_label))

        for path, (ends_blank, ends_label) in beams.items():
            whole = _log_add(ends_blank, ends_label)
            add(path, whole + row[blank], none)
            for label, score in enumerate(row):
                if label == blank:
                    continue
                if path and path[-1] == label:
                    add(path, none, ends_label + score)
                    add((*path, label), none, ends_blank + score)
                else:
                    add((*path, label), none, whole + score)
        best = sorted(extended.items(), key=lambda item: _log_add(*item[1]), reverse=True)[:width]
        beams = dict(best)
    return [(path, _log_add(*scores)) for path, scores in beams.items()]


def _log_add(a: float, b: float) -> float:
    """log(exp(a) + exp(b))."""
    high, low = max(a, b), min(a, b)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))
