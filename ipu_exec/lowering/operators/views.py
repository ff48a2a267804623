"""Operators that no tile computes: views, and questions that the host answers while capturing."""

from __future__ import annotations

from ipu_exec.lowering.operator_info import aten, describe

# Free on the IPU: a view is another way to index the same elements, and the compiler resolves it.
describe(
    *aten(
        """view _unsafe_view _reshape_alias reshape t transpose swapaxes permute movedim expand
        expand_as view_as slice select narrow split split_with_sizes chunk unsafe_split unsafe_chunk
        unsafe_split_with_sizes unbind squeeze unsqueeze detach detach_ alias as_strided unfold
        flatten unflatten diagonal view_as_real view_as_complex lift_fresh lift numpy_T mT
        resolve_conj resolve_neg real transpose_ squeeze_ unsqueeze_ t_ as_strided_ set_ _conj
        hsplit vsplit tensor_split"""
    ),
    view=True,
)
describe(
    "aten.lift_fresh.default",
    "aten._assert_async.msg",
    "aten._local_scalar_dense.default",
    "aten.promote_types.default",
    on_host=True,
)
describe(*aten("view _unsafe_view reshape"), popart_name="Reshape")
describe(*aten("t transpose permute"), popart_name="Transpose")
describe(*aten("slice select"), popart_name="Slice")
describe(*aten("slice split narrow"), makes_different=True)
