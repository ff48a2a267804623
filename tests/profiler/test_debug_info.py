"""debug.cbor, compared with the operations of its profile."""

from __future__ import annotations

import json

import cbor2
import pytest
import torch

import ipu_exec
from ipu_exec.option_groups.engine_options import ENGINE_OPTIONS_VARIABLE
from ipuscope.profiler import ProfileError, pva
from ipuscope.profiler.pva import debug_info


def run(folder):
    options = ipu_exec.Options(autoreport=True, autoreport_dir=folder)
    options.showCompilationProgressBar(False)
    model = ipu_exec.inferenceModel(torch.nn.Sequential(torch.nn.Linear(4, 4)), options)
    model(torch.zeros(2, 4))
    model.destroy()
    return folder / "inference"


def test_a_program_that_asks_for_it_gets_names_lines_and_modules(tmp_path, monkeypatch):
    asked = json.dumps({"autoReport.outputDebugInfo": "true"})
    monkeypatch.setenv(ENGINE_OPTIONS_VARIABLE, asked)
    folder = run(tmp_path)
    debug = cbor2.loads((folder / "debug.cbor").read_bytes())
    assert (folder.parent / "debug.cbor").read_bytes() == (folder / "debug.cbor").read_bytes()
    names, contexts = debug["stringTable"], {one["id"]: one for one in debug["contexts"]}
    assert len(contexts) == len(debug["contexts"])
    operations = pva.OperationAnalysis(pva.openReport(folder)).operations
    assert {operation.debugContext.id for operation in operations} <= set(contexts)
    for operation in operations:
        one = contexts[operation.debugContext.id]
        if operation.name:
            assert names[one["name"]] == operation.name and one["layer"] == "popart"
            parent = contexts[one["parentId"]]
            assert parent["layer"] == "poptorch" and parent["parentId"] == 0
            place = operation.debugContext.location
            assert one["location"]["lineNumber"] == place.lineNumber
            assert names[one["location"]["fileName"]] == place.fileName
    product = next(o for o in operations if o.name.endswith(("Gemm", "MatMul", "Linear")))
    context = contexts[contexts[product.debugContext.id]["parentId"]]
    assert (context["module"], context["op_type"]) == ("0", product.name.rpartition("/")[2])
    order = [one["id"] for one in debug["contexts"]]
    for one in debug["contexts"]:
        if one["parentId"]:
            assert order.index(one["id"]) < order.index(one["parentId"])


def test_others_get_none(tmp_path, monkeypatch):
    monkeypatch.delenv(ENGINE_OPTIONS_VARIABLE, raising=False)
    assert not (run(tmp_path) / "debug.cbor").exists()


def test_a_file_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv(ENGINE_OPTIONS_VARIABLE, raising=False)
    folder = run(tmp_path)
    (folder / "debug.cbor").mkdir()
    with pytest.raises(ProfileError, match=r"debug\.cbor"):
        debug_info.write(folder / "profile.pop")
    assert not (folder / "debug.cbor.partial").exists()
