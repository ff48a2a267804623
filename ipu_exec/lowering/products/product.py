"""Products and convolutions as programs: matmul and convolution are one problem.

A `Problem` (`product_problem`) has a field (rows of outputs), input channels and output channels,
in convolution groups. The planner (`product_search`, docs/cycles.md#planner) splits each over
tiles, tries every split that fits in memory, and picks the one with the fewest cycles
(`product_costs`): exchange of inputs and weights, rearrangement, the multiply-accumulate vertex,
exchange and reduction of partials. If nothing fits, output channels are processed serially; if that
does not fit either, the bound doubles and doubles, as in the vendor's planner. Here the plan
becomes steps, with what each tile has of them (`product_shares`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import gcd, prod
from typing import Any

import numpy as np

from ipu_exec.lowering import worklists
from ipu_exec.lowering.build import Builder, messages
from ipu_exec.lowering.costs import add_channels_cycles, copy_cycles, slice_cycles, transform_cycles
from ipu_exec.lowering.layouts import (
    GRAIN_BYTES,
    Spread,
    apportion,
    ceil_div,
    split_evenly,
    spread_of,
)
from ipu_exec.lowering.plan import Operand, Plan
from ipu_exec.lowering.products import amp
from ipu_exec.lowering.products.partials import Array, Wanted, operand, reduce_partials, repeats
from ipu_exec.lowering.products.product_costs import vertex_cycles
from ipu_exec.lowering.products.product_problem import (
    GROUPS_TOGETHER,
    SLIC_WINDOW,
    Problem,
    Splits,
    atom_bytes,
    grains,
    group_grain,
    input_elements,
    kernel_part,
    padded_ins,
    padded_outs,
    padding_elements,
    unit_for,
)
from ipu_exec.lowering.products.product_search import search
from ipu_exec.lowering.products.product_shares import (
    CHANNEL_RUN,
    Share,
    block_of,
    piece,
    planned_key,
    share_out,
    stored_weights,
    weight_block,
)
from ipuscope.profiler.vertices import WORKERS

# an operand that lies otherwise and goes to more tiles than this is put in order once, before it is
# sent ([PL, lib/poplin/Convolution.cpp], inViewMaxBroadcastDests, weightViewMaxBroadcastDests)
MOST_VIEWERS = 7
TRANSPOSED = 16  # elements of the least block that popops transposes: 4 x 4
SLIC_BUFFER_BYTES = 200  # [PL, lib/poplin/ConvVertices.cpp]: weights in its order, and alignment
VERTICES = {
    "1x1": "poplin::ConvPartial1x1Out<{t},{p},true,false,{u}>",
    "nx1": "poplin::ConvPartialnx1<{t},{p},true,false,{u}>",
    "slic": "poplin::ConvPartial1xNSLIC<{t},{p},{s},true,4,{c},4,false>",
    "hmac": "poplin::ConvPartialHorizontalMac<{t},{p},true>",
    "vmac": "poplin::ConvPartialVerticalMac<{t},{p},true>",
    "outer": "poplin::OuterProduct<{t}>",
}


@dataclass(frozen=True)
class Product:
    """A product added to a plan: the layout of its outputs and its splits."""

    outputs: Spread
    share: Share
    splits: Splits
    channels: Array  # output channels that each tile's outputs belong to
    # bytes of the constants that tell the workers their rows, and of the vertex's pointers
    worklists: Array
    # the last step that reads each of the operator's operands that it multiplies
    last_reads: tuple[tuple[int, int], ...] = ()

    def end_reads(self, build: Builder) -> None:
        """Say until when operands live that only products read."""
        for index, step in self.last_reads:
            build.read_until(index, step)

    def plan(self, build: Builder) -> Plan:
        """The finished plan of an operator that is this product."""
        self.end_reads(build)
        layout = self.outputs.layout(build.spec.output.dtype)
        return build.plan((layout,), constants=self.worklists, note=str(self.splits))


def add_product(
    build: Builder,
    name: str,
    problem: Problem,
    methods: tuple[str, ...],
    inputs: int | Operand,
    weights: int | Operand,
    dtype: str,
    field_first: bool = False,
    turned: tuple[bool, bool] = (False, False),
    given: Given | None = None,
) -> Product:
    """Plan ``problem`` and append its steps.

    ``inputs`` and ``weights``: operand indices, or placed operands. Those without a layout get the
    planned one (`Builder.wishes`); others cost exchange and rearrangement. ``turned`` (inputs,
    weights): the operand's channels are not adjacent in its storage, and unless it has the planned
    layout it is transposed on its tiles before it is sent: once, not on every tile that receives a
    part. ``field_first``: the result's storage runs along the field (NCHW), not along the output
    channels. ``given``: what is known of layouts and splits.
    """
    if problem.is_empty:
        return no_product(build, name, problem, inputs, weights, dtype)
    machine = build.machine
    unit = unit_for(problem, machine, dtype)
    given = given or Given()
    splits = given.splits or search(problem, machine, dtype, methods)
    share = share_out(problem, machine, unit, splits)
    steps = _ProductSteps(build, name, problem, dtype, unit, splits, share, given)

    first, gathered, inputs_moved = steps.send_inputs(inputs, turned[0])
    sent = build.next - 1
    traffic = steps.weight_traffic(weights, turned[1])
    last, weights_read = steps.convolve(traffic)
    build.hold(f"{name}/inputs", gathered, first, last)
    read_here = steps.padded_inputs * unit.item_bytes - gathered
    steps.hold_copy("inputs", read_here, sent, last)
    inputs_read = last if read_here.any() else sent

    real = share.field * share.outs * share.groups
    elements = piece(real, share.in_index, splits.depth)
    out_key = planned_key(problem, machine, dtype, splits, "output", Operand((), dtype, ()))
    run = int((share.field if field_first else share.outs).max())
    spread = Spread(given.keys.get("output") or (out_key[0], run, *out_key[2:]), elements)
    channels = np.minimum(share.outs * share.groups, elements)
    last_reads = (
        (inputs, inputs_read if inputs_moved is None else inputs_moved),
        (weights, weights_read if traffic.moved is None else traffic.moved),
    )
    of_arguments = tuple((which, at) for which, at in last_reads if isinstance(which, int))
    return Product(spread, share, splits, channels, steps.worklists(), of_arguments)


@dataclass(frozen=True)
class Given:
    """What a product is told besides its problem."""

    channel_strides: tuple[int, int] = (1, 1)  # of (inputs', weights') input channels in storage
    matrices: bool = False  # it is a product of matrices, not a convolution
    splits: Splits | None = None  # found elsewhere
    keys: Mapping[str, Any] = field(default_factory=dict)  # of layouts: "input", "output"


@dataclass(frozen=True)
class _WeightTraffic:
    """Bytes of the weights that each tile receives and sends before a serial step."""

    received: Array
    sent: Array
    messages: Array
    in_place: bool  # they lie as planned
    sliced: Array  # what lies there of a step's weights
    moved: int | None  # the step that reads them last, if it puts them in order


@dataclass(frozen=True)
class _ProductSteps:
    """A planned product whose steps are appended to ``build``."""

    build: Builder
    name: str
    problem: Problem
    dtype: str
    unit: amp.Unit
    splits: Splits
    share: Share
    given: Given
    # name, bytes and first step of what is put in order before it is sent
    copies: list[tuple[str, Array, int]] = field(default_factory=list)

    @property
    def part(self) -> Problem:
        """The problem of each tile, which has its part of the kernel."""
        return kernel_part(self.problem, self.splits.kernel)

    @property
    def half(self) -> str:
        """The element type in the names of vertices."""
        return "half" if self.unit.half else "float"

    @property
    def padded_ins(self) -> Array:
        """Input channels of each tile, in whole grains."""
        return padded_ins(self.problem, self.unit, self.splits, self.share.ins)

    @property
    def kernel(self) -> tuple[int, int]:
        """Rows and columns of the kernel, in whole passes of the vertex."""
        rows, cols = self.part.kernel
        height = self.splits.filter_height
        width = SLIC_WINDOW if self.splits.method == "slic" else 1
        return -(-rows // height) * height, -(-cols // width) * width

    @property
    def pads_here(self) -> bool:
        """Whether the padding of a field is written out on each tile, with what it pads."""
        # For a vertex that takes several kernel elements at once ([PL,
        # lib/poplin/ConvVertices.cpp], createConvPartialAmpVertices, createConvPartialSlicVertex).
        return self.splits.filter_height > 1 or self.splits.method == "slic"

    @property
    def padded_inputs(self) -> Array:
        """Elements of the inputs that each tile holds while it computes."""
        if not self.pads_here:
            return self._input_elements(self.padded_ins)
        problem, share = self.problem, self.share
        reach = [k * d for k, d in zip(self.kernel, problem.dilation, strict=True)]
        columns = self.splits.method == "slic"  # the zeros between and around them, too
        row_stride, column_stride = problem.field_stride
        unclipped = replace(
            problem,
            kernel=self.kernel,
            field_stride=(1, 1 if columns else column_stride),
            in_rows=problem.in_rows * row_stride + 2 * reach[0],
            in_cols=problem.in_cols * (column_stride if columns else 1)
            + (2 * reach[1] if columns else 0),
        )
        return input_elements(
            unclipped,
            self.splits.method,
            share.segments,
            share.width,
            self.padded_ins,
            share.groups,
        )

    @property
    def field_buffer(self) -> Array:
        """Bytes that the SLIC vertex keeps outputs in, of the groups that it takes at once."""
        if self.splits.method != "slic":
            return np.zeros_like(self.share.field)
        outputs = self.share.field * SLIC_WINDOW * self.unit.partial_bytes
        return np.where(self.share.field > 0, outputs + SLIC_BUFFER_BYTES, 0)

    @property
    def worker_partials(self) -> Array:
        """Bytes of the partials that each worker of a VMAC vertex has of its own."""
        # those of the groups that it takes at once ([PL, lib/poplin/ConvVertices.cpp],
        # createConvPartialVerticalMacVertex)
        if self.splits.method != "vmac":
            return np.zeros_like(self.share.field)
        return self.share.field * GROUPS_TOGETHER * self.unit.partial_bytes * WORKERS

    def worklists(self) -> Array:
        """Bytes of the vertex's worklists and pointers on each tile."""
        share, splits, problem = self.share, self.splits, self.part
        strides = problem.field_stride
        if splits.method in ("slic", "vmac"):  # they read the zeros of a stride, too
            strides = 1, 1
        elif splits.filter_height > 1:
            strides = 1, strides[1]
        rows, length = ceil_div(share.segments, strides[0]), ceil_div(share.width, strides[1])
        window = splits.filter_height, SLIC_WINDOW if splits.method == "slic" else 1
        inside = 1.0
        if not self.pads_here:
            whole, spread = self.problem, problem.field_stride[0]
            inputs = (whole.in_rows - 1) * spread + 1
            axis = whole.kernel[0], whole.stride[0], whole.dilation[0]
            inside = worklists.inside(whole.image_rows, inputs, *axis)
        lists = worklists.worklist_bytes(
            splits.method, rows, length, problem.kernel, window, inside
        )
        grain_in, grain_out = grains(problem, self.unit, splits.method, splits.filter_height)
        if splits.method == "hmac":  # a pointer for all channels of a dot product
            grain_in = max(1, problem.in_channels)
        groups = ceil_div(share.groups, group_grain(problem, splits.method))
        compact = self.build.machine.target.bytes_per_tile <= worklists.COMPACT_REACH
        pointer = 2 if compact else 4
        partials = np.where(share.field > 0, self._separate_partials() * pointer, 0)
        return (
            lists
            + partials
            + worklists.pointer_bytes(
                ceil_div(share.ins, grain_in), ceil_div(self.step_outs, grain_out), groups, compact
            )
        )

    def _separate_partials(self) -> Array:
        """Partials that vertices add by a pointer each, because they do not lie in one piece."""
        tile_bytes, partial = self.build.machine.target.bytes_per_tile, self.unit.partial_bytes
        padded = self.share.field * self.step_padded_outs * self.share.groups
        separate, depth = np.zeros_like(padded), self.splits.depth
        for radix in amp.reduction_stages(depth):
            depth = -(-depth // radix)
            arriving = padded * depth * radix // self.splits.depth
            separate += np.where(amp.lies_in_one_piece(arriving * partial, tile_bytes), 1, radix)
        return separate

    @property
    def step_outs(self) -> Array:
        """Output channels of a serial step."""
        return ceil_div(self.share.outs, self.splits.serial)

    @property
    def step_padded_outs(self) -> Array:
        """The same, padded to whole groups of the vertex."""
        return padded_outs(self.problem, self.unit, self.splits.method, self.step_outs)

    @property
    def step_weight_bytes(self) -> Array:
        """Bytes of a serial step's weights, padded."""
        weights = self.padded_ins * self.step_padded_outs * prod(self.kernel) * self.share.groups
        return weights * self.unit.item_bytes

    def _input_elements(self, ins: Array) -> Array:
        share = self.share
        return input_elements(
            self.part, self.splits.method, share.segments, share.width, ins, share.groups
        )

    def _about(self, what: str) -> Wanted:
        stride = self.given.channel_strides[what == "weight"]
        return self.problem, self.dtype, self.splits, what, stride, self.given.keys.get(what)

    def atom(self, what: str) -> int:
        """Bytes of the input, or of the weights, that lie together as the vertex wants them."""
        method, height = self.splits.method, self.splits.filter_height
        return atom_bytes(self.problem, self.unit, method, height, what)

    def turned_atom(self, what: str) -> int:
        """The same of an operand that is transposed first."""
        # Groups of a dimension divide its extent. popops transposes none that are not whole grains
        # of 8 bytes: they are copied piece by piece ([PL, lib/popops/Rearrange.cpp],
        # getMinimumRegroupGrainSize; [PL, lib/poplin/Convolution.cpp], regroupIfBeneficialForPlan).
        problem, atom = self.problem, self.atom(what)
        if self.splits.method in ("slic", "vmac") or problem.input_transform:
            return atom
        if what == "weight":
            extent = problem.out_channels
        else:
            extent = problem.segments if problem.taps == problem.width == 1 else CHANNEL_RUN
        return gcd(atom, extent * self.unit.item_bytes, GRAIN_BYTES)

    def send_inputs(self, inputs: int | Operand, turned: bool) -> tuple[int, Array, int | None]:
        """Fetch the inputs, but for tiles that hold all of their part and read it there.

        Returns the first step, the bytes gathered, and the last step that reads it to order it.
        """
        build, name, splits = self.build, self.name, self.splits
        slices = self._input_elements(self.share.ins)
        source, in_place = operand(build, inputs, self._about("input"), slices / splits.outs)
        item = self.unit.item_bytes
        lying = spread_of(source, build.machine.tiles).elements * item
        expand = self.problem.input_transform
        turned = turned and not repeats(build, inputs)
        moved: int | None = None
        if turned and not in_place:
            _turn(build, f"{name}/transpose inputs", source, self.half, self.turned_atom("input"))
            moved = build.next - 1
        arriving = np.rint(slices * self.problem.expansion).astype(np.int64) * item
        padded = self._padded_atom()
        if (
            expand
            or (not in_place and turned)
            or (splits.outs > MOST_VIEWERS and (padded or not in_place))
        ):
            total = self.problem.inputs if expand else source.elements
            lying, step = self._put_in_order("inputs", total, slices, lying, expand)
            moved = step if moved is None else moved
            if padded and (in_place or not turned):
                self._pad_last_group(lying, padded)
            in_place, padded, arriving = True, 0, arriving if not expand else slices * item
        first, even = build.next, splits.outs % 2 == 0
        extents = self.share.segments, self.share.width, self.share.ins, self.share.groups
        zeros = padding_elements(self.part, splits.method, splits.filter_height, *extents) * item
        if in_place:
            home = np.minimum(lying, arriving)
            peers = np.minimum(splits.outs, ceil_div(arriving, 4))
            received = arriving - home + zeros
            build.exchange(f"{name}/inputs", received, home, peers, even)
            here = (arriving == home) & (self.padded_inputs == slices)
            gathered = self.padded_inputs - self._whole_inputs_here(slices)
        else:
            # split outputs take the same inputs, which are sent once
            unique = apportion(int(arriving.sum()) // splits.outs, lying)
            peers = messages(arriving, unique, 2)
            build.exchange(f"{name}/inputs", arriving + zeros, lying, peers, even)
            here = np.zeros(build.tiles, bool)
            gathered = self.padded_inputs
        if padded:
            self._pad_last_group(gathered * item, padded)
        return first, np.where(here, 0, gathered * item), moved

    def _padded_atom(self) -> int:
        """Bytes of the inputs that lie together, if the vertex's groups have to be padded; or 0."""
        # What takes whole groups gets a copy of its last group and of the constant that pads it
        # ([PL, lib/poplin/Convolution.cpp], convolutionPreprocess; [PL, lib/poplin/ConvModel.cpp],
        # addTransformCycleEstimate, padInChannels). Where it is put in order anyway this is counted
        # there. Convolutions with such channels are first layers, whose inputs are expanded.
        splits, problem = self.splits, self.problem
        grain = grains(problem, self.unit, splits.method, splits.filter_height)[0]
        matrix = self.given.matrices and splits.method == "1x1"
        if not matrix or problem.in_channels % grain == 0:
            return 0
        return gcd(grain, problem.in_channels) * self.unit.item_bytes

    def _pad_last_group(self, nbytes: Array, atom: int) -> None:
        """Append the copy of the last group of input channels with its padding."""
        # `nbytes`: of inputs on each tile, `atom` together. The other groups are whole: since June
        # 2022 an operand is created in groups of the vertex, and only the last is cut ([PL,
        # lib/poplin/Convolution.cpp], getInChansPerGroup); before, all divided the channels.
        share, splits = self.share, self.splits
        grain = grains(self.problem, self.unit, splits.method, splits.filter_height)[0]
        group = share.field * share.groups * grain * self.unit.item_bytes
        copied = np.where(self.padded_ins != share.ins, np.minimum(nbytes, group), 0)
        kind = f"poplin::PreArrange<{self.half}>"
        self.build.compute(f"{self.name}/pad inputs", kind, transform_cycles(copied, atom))

    def _whole_inputs_here(self, slices: Array) -> Array:
        """Elements of the inputs that a tile reads where they lie."""
        # A vertex has one pointer for each group of input channels, to all of the tile's field
        # ([PL, lib/poplin/ConvVertices.cpp], createConvPartialAmpVertex). The tiles that split the
        # output channels share in storing the inputs, one after another. A group that one of them
        # has whole need not be gathered there.
        share, splits = self.share, self.splits
        # with neighbours
        overlaps = self.problem.taps > 1 and splits.rows * splits.cols * splits.kernel > 1
        if overlaps or self.pads_here:
            return np.zeros_like(slices)
        grain = grains(self.problem, self.unit, splits.method, splits.filter_height)[0]
        count = share.groups * ceil_div(share.ins, grain)
        begin = ceil_div(share.out_index * count, splits.outs)
        whole = np.maximum((share.out_index + 1) * count // splits.outs - begin, 0)
        padded = self.padded_ins != share.ins
        return np.where(padded, 0, whole * (slices // np.maximum(count, 1)))

    def _put_in_order(
        self, what: str, total: int, wanted: Array, lying: Array, expand: bool = False
    ) -> tuple[Array, int]:
        """Copy an operand to its planned layout, before tiles fetch their parts of the copy.

        ``total`` elements go to tiles by ``wanted``; ``expand``: kernel elements become channels
        then. Returns the bytes of the copy on each tile, and the step that reads the operand.
        """
        build, name = self.build, self.name
        elements = apportion(total, wanted)
        nbytes = elements * self.unit.item_bytes
        unique = apportion(min(int(lying.sum()), int(nbytes.sum())), lying)
        step = build.exchange(
            f"{name}/rearrange {what}", nbytes, lying, messages(nbytes, unique, 2)
        )
        if expand:
            kind = f"popops::Transpose2D<{self.half}>"
            build.compute(
                f"{name}/expand {what}", kind, transform_cycles(nbytes, self.atom("input"))
            )
        self.copies.append((f"{name}/rearranged {what}", nbytes, step))
        return nbytes, step

    def weight_traffic(self, weights: int | Operand, turned: bool) -> _WeightTraffic:
        """Traffic of a serial step's weights, transposed first if ``turned`` and not as planned."""
        build, share, splits = self.build, self.share, self.splits
        item, serial = self.unit.item_bytes, splits.serial
        block = weight_block(self.problem, build.machine, self.dtype, splits)
        stored = stored_weights(share, splits, block)
        source, in_place = operand(build, weights, self._about("weight"), stored)
        wanted = ceil_div(share.ins * share.outs * share.taps * share.groups, serial) * item
        lying = spread_of(source, build.machine.tiles).elements * item
        turned = turned and not repeats(build, weights)
        moved: int | None = None
        if turned and not in_place:
            name, atom = f"{self.name}/transpose weights", self.turned_atom("weight")
            _turn(build, name, source, self.half, atom)
            moved = build.next - 1
        fields = splits.rows * splits.cols  # tiles that want the same weights
        if not in_place and (turned or fields > MOST_VIEWERS):
            lying, step = self._put_in_order("weights", source.elements, stored, lying)
            moved = step if moved is None else moved
            in_place = True
        lying = lying if serial == 1 else apportion(int(lying.sum()) // serial, lying)
        if in_place:
            home = np.minimum(lying, wanted)
            peers = np.minimum(fields - 1, ceil_div(wanted - home, block * item))
            return _WeightTraffic(wanted - home, home, peers, in_place, lying, moved)
        unique = apportion(int(wanted.sum()) // fields, lying)
        peers = messages(wanted, unique, 2, block_of(source) * item)
        return _WeightTraffic(wanted, lying, peers, in_place, lying, moved)

    def hold_copy(self, what: str, read_here: Array, sent: int, last: int) -> None:
        """Keep what was put in order until it is ``sent``, what is read there to the ``last``."""
        # the exchange into a compute set is a step: what only other tiles read is free after it
        for copy, nbytes, since in self.copies:
            if not copy.endswith(what):
                continue
            stays = np.clip(read_here, 0, nbytes)
            self.build.hold(copy, nbytes - stays, since, sent)
            self.build.hold(f"{copy}/read there", stays, since, last)

    def convolve(self, traffic: _WeightTraffic) -> tuple[int, int]:
        """Compute in serial steps; returns the last, and the last to read weights as they lie."""
        build, name, share, splits = self.build, self.name, self.share, self.splits
        partial_type = "half" if self.unit.partial_bytes == 2 else "float"
        vertex = VERTICES[splits.method].format(
            t=self.half,
            p=partial_type,
            u=self.unit.out_group,
            s=self.problem.stride[1],
            c=8 // self.unit.partial_bytes,  # of its units, 8 with float partials, 4 a chain
        )
        cycles, outputs = self._vertex_cycles(), share.field * self.step_padded_outs * share.groups
        weight_bytes = self.step_weight_bytes
        # a tile that has all of its weights reads them where they lie
        here = (traffic.received == 0) & (traffic.sliced == weight_bytes) & traffic.in_place
        gathered = np.where(here, 0, weight_bytes - self._whole_weights_here(traffic))
        last = build.next
        first, sent = last, last
        done = share.field * self.step_outs * share.groups  # before input splits share them
        read_here = np.where(here, weight_bytes, weight_bytes - gathered)
        for serial in range(splits.serial):
            tail = f"/{serial + 1}" if splits.serial > 1 else ""
            if splits.serial > 1:
                stored = traffic.sliced
                kind = f"popops::DynamicSlice1d<{self.half}>"
                at = build.compute(f"{name}/slice weights{tail}", kind, slice_cycles(stored))
                build.hold(f"{name}/sliced weights{tail}", stored, at, at + 1)
                read = at
            weights_step = build.exchange(
                f"{name}/weights{tail}", traffic.received, traffic.sent, traffic.messages
            )
            sent = build.next - 1
            if splits.serial == 1:
                read = sent
            if not traffic.in_place:
                # what lies otherwise arrives in pieces, which are put in the vertex's order
                kind = f"poplin::PreArrange<{self.half}>"
                build.compute(f"{name}/pre-arrange{tail}", kind, copy_cycles(weight_bytes))
            flops = 2 * self.problem.macs // splits.serial
            last = build.compute(f"{name}/convolve{tail}", vertex, cycles, flops)
            wide = self.unit.wide_load  # only interleaved memory is read 128 bits at a time
            build.hold(f"{name}/weights{tail}", gathered, weights_step, last, interleaved=wide)
            build.hold(f"{name}/field buffer{tail}", self.field_buffer, last, last)
            build.hold(f"{name}/worker partials{tail}", self.worker_partials, last, last)
            reduce_partials(
                build, f"{name}/reduce{tail}", outputs, done, share, splits, self.unit, last
            )
            if splits.serial > 1:
                nbytes = piece(done, share.in_index, splits.depth) * self.unit.item_bytes
                kind = f"popops::DynamicUpdateSlice1d<{self.half}>"
                at = build.compute(f"{name}/update{tail}", kind, slice_cycles(nbytes))
                build.hold(f"{name}/outputs{tail}", nbytes, at - 1, at)
        self.hold_copy("weights", read_here, sent, last)
        if splits.serial > 1:  # the whole result, which each step writes a part of
            whole = piece(share.field * share.outs * share.groups, share.in_index, splits.depth)
            build.hold(f"{name}/outputs", whole * self.unit.item_bytes, first, build.next - 2)
        return last, last if splits.serial == 1 and read_here.any() else read

    def _whole_weights_here(self, traffic: _WeightTraffic) -> Array:
        """Bytes of the weights that a tile reads where they lie."""
        # A vertex has one pointer for each block that it loads at once. A tile stores whole blocks.
        padded = (self.padded_ins != self.share.ins) | (self.step_padded_outs != self.step_outs)
        if not traffic.in_place or self.splits.serial > 1:
            return np.zeros_like(traffic.sliced)
        block = weight_block(self.problem, self.build.machine, self.dtype, self.splits)
        block_bytes = block * self.unit.item_bytes
        whole = np.minimum(traffic.sliced // block_bytes * block_bytes, self.step_weight_bytes)
        return np.where(padded, 0, whole)

    def _vertex_cycles(self) -> Array:
        share, splits = self.share, self.splits
        cycles = vertex_cycles(
            self.part,
            replace(self.unit, executed=not self.build.machine.ipu_model),
            splits.method,
            splits.filter_height,
            share.segments,
            share.width,
            self.padded_ins,
            self.step_outs,
            share.groups,
        )
        return np.where(share.field > 0, cycles, 0)


def no_product(
    build: Builder,
    name: str,
    problem: Problem,
    inputs: int | Operand,
    weights: int | Operand,
    dtype: str,
) -> Product:
    """Append the steps of an empty product: if its result has elements, they are zero."""
    for which in (inputs, weights):
        if isinstance(which, int):
            build.place(which)
    spread = build.linear(
        problem.groups * problem.segments * problem.width * problem.out_channels, dtype
    )
    build.map(f"{name}/zero", "fill", spread.elements, dtype, flops=0)
    none = np.zeros(build.tiles, np.int64)
    share = Share(none, none, none, none, none, none, none, none, none)
    return Product(spread, share, Splits("1x1", 1, 1, 1, 1, 1, 1), spread.elements, none)


def _turn(build: Builder, name: str, source: Operand, half: str, atom: int) -> None:
    """Append the transposition of an operand."""
    # popops spreads the blocks that it transposes over all tiles ([PL, lib/popops/Rearrange.cpp],
    # regroupTensorInternal). What puts the operand in order afterwards is counted as that exchange.
    machine = build.machine
    elements = np.zeros(build.tiles, np.int64)
    begin, end = machine.first, machine.first + machine.product_tiles
    elements[begin:end] = split_evenly(source.elements, end - begin, TRANSPOSED)
    nbytes = elements * source.item_bytes
    step = build.compute(name, f"popops::Transpose2D<{half}>", transform_cycles(nbytes, atom))
    build.hold(name, nbytes, step, step + 1)


def add_bias(build: Builder, name: str, product: Product, bias: int, dtype: str) -> None:
    """Exchange the bias to the tiles that hold outputs of its channels, and add it in place."""
    source = build.place(bias)
    step = build.fetch(f"{name}/bias", source, product.channels, broadcast=True)
    build.hold(f"{name}/bias", product.channels * source.item_bytes, step, build.next)
    elements = product.outputs.elements
    if dtype in ("float16", "bfloat16"):
        vertex = "popops::BroadcastVectorInner1DInPlace<popops::expr::BinaryOpType::ADD,half>"
        cycles = add_channels_cycles(elements, product.channels, CHANNEL_RUN)
        build.compute(f"{name}/add bias", vertex, cycles, int(elements.sum()))
        return
    # popops has no quick vertex for fp32: it writes the bias out for each position, in pieces of a
    # group, and adds that ([PL, lib/popops/ElementWise.cpp], binaryOpBroadcastInnerVector)
    nbytes = elements * 4
    at = build.compute(
        f"{name}/broadcast bias", "poplar_rt::DstStridedCopy", transform_cycles(nbytes, 8)
    )
    build.hold(f"{name}/broadcast bias", nbytes, at, at + 1)
    build.map(f"{name}/add bias", "add_", elements, dtype)
