"""Model files of other libraries, written by those libraries; a test says why when one is not installed."""

import importlib
import json
import os
import shutil
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raytrain_debug.postmortem import hdf5_files, orbax_files, xgboost_files
from raytrain_debug.postmortem.checkpoints import open_file, summarise


def library(name):
    try:
        return importlib.import_module(name)
    except Exception as error:  # a native library that is missing raises OSError
        pytest.skip(f"{name} cannot be imported ({error}); its extra of raytrain_debug has it (pyproject.toml)")


def only(directory, name):
    return next(file for file in summarise(directory) if file.path == name)


@pytest.fixture(scope="module")
def numbers():
    generator = np.random.default_rng(0)
    rows = generator.random((100, 4))
    return rows, (rows[:, 0] > 0.5).astype(int), generator.integers(0, 3, 100)


@pytest.mark.parametrize("suffix", ["json", "ubj"])
def test_an_xgboost_model_tells_trees_features_and_objective(tmp_path, numbers, suffix):
    xgboost = library("xgboost")
    rows, halves, thirds = numbers
    data = xgboost.DMatrix(rows, halves, feature_names=["a", "b", 'c "num_trees"', "d"])
    binary = xgboost.train({"objective": "binary:logistic", "max_depth": 3}, data, num_boost_round=7)
    binary.set_attr(best_iteration="5")
    binary.save_model(tmp_path / f"binary.{suffix}")
    many = xgboost.train({"objective": "multi:softprob", "num_class": 3}, xgboost.DMatrix(rows, thirds), 4)
    many.save_model(tmp_path / f"many.{suffix}")
    found = only(tmp_path, f"binary.{suffix}")
    assert (found.format, found.tensors, found.faults) == ("XGBoost model", (), ())
    assert found.scalars == {
        "objective": "binary:logistic",
        "booster": "gbtree",
        "features": binary.num_features(),
        "trees": 7,
        "rounds": binary.num_boosted_rounds(),
        "version": xgboost.__version__.partition("+")[0],
        "attributes.best_iteration": "5",
    }
    found = only(tmp_path, f"many.{suffix}").scalars
    assert (found["trees"], found["rounds"], found["classes"]) == (12, 4, 3)


@pytest.mark.parametrize("suffix", ["json", "ubj"])
def test_xgboost_boosters_of_other_kinds(tmp_path, numbers, suffix):
    xgboost = library("xgboost")
    rows, halves, _ = numbers
    for booster in ("dart", "gblinear"):
        xgboost.train({"booster": booster}, xgboost.DMatrix(rows, halves), 5).save_model(
            tmp_path / f"{booster}.{suffix}"
        )
    dart, linear = summarise(tmp_path)
    assert (dart.scalars["booster"], dart.scalars["trees"]) == ("dart", 5)
    assert (linear.scalars["booster"], linear.faults) == ("gblinear", ())


def test_a_lightgbm_model_tells_trees_features_and_objective(tmp_path, numbers):
    lightgbm = library("lightgbm")
    rows, halves, _ = numbers
    model = lightgbm.train({"objective": "binary", "verbose": -1}, lightgbm.Dataset(rows, halves), num_boost_round=5)
    model.save_model(tmp_path / "model.txt")
    found = only(tmp_path, "model.txt")
    assert (found.format, found.faults) == ("LightGBM model", ())
    assert (found.scalars["objective"], found.scalars["trees"]) == ("binary sigmoid:1", model.num_trees())
    assert (found.scalars["features"], found.scalars["classes"]) == (model.num_feature(), 1)
    text = (tmp_path / "model.txt").read_text()
    (tmp_path / "model.txt").write_text(text[: text.index("Tree=3")])
    (fault,) = only(tmp_path, "model.txt").faults
    assert "cut short, after 3 trees" in fault.reason


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_models_never_crash_the_summary(tmp_path_factory, data):
    library("xgboost")
    folder = tmp_path_factory.getbasetemp() / "models"
    if not folder.exists():
        xgboost = library("xgboost")
        folder.mkdir()
        rows = np.random.default_rng(0).random((20, 2))
        model = xgboost.train({"max_depth": 2}, xgboost.DMatrix(rows, rows[:, 0]), 2)
        model.save_model(folder / "m.ubj")
        model.save_model(folder / "m.json")
    for name in ("m.ubj", "m.json"):
        content = bytearray((folder / name).read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(15, len(content) - 1))] = data.draw(st.integers(0, 255))
        del content[data.draw(st.integers(16, len(content))) :]
        (folder / "bad").mkdir(exist_ok=True)
        (folder / "bad" / name).write_bytes(content)
    assert len(summarise(folder / "bad")) == 2


def test_a_vast_json_model_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(xgboost_files, "_MAX_JSON", 20)
    (tmp_path / "m.json").write_text(json.dumps({"learner": {"attributes": {}}}))
    (fault,) = only(tmp_path, "m.json").faults
    assert "too large" in fault.reason
    assert ".ubj" in fault.remedy


def test_a_lightning_checkpoint_tells_epoch_step_and_hyper_parameters(tmp_path):
    lightning = library("pytorch_lightning")

    class Model(lightning.LightningModule):
        def __init__(self, lr=0.25, width=3):
            super().__init__()
            self.save_hyperparameters()
            self.layer = torch.nn.Linear(2, width)

        def training_step(self, batch, _):
            return self.layer(batch[0]).square().sum()

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(6, 2)), batch_size=2)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(Model(), data)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    found = only(tmp_path, "last.ckpt")
    told = {tensor.name: tensor.statistics for tensor in found.tensors}
    assert (found.format, found.faults) == ("Lightning", ())
    assert told["state_dict.layer.weight"].shape == (3, 2)
    assert (found.scalars["epoch"], found.scalars["global_step"]) == (trainer.current_epoch, 6)
    assert (found.scalars["hyper_parameters.lr"], found.scalars["hyper_parameters.width"]) == (0.25, 3)
    assert found.scalars["pytorch-lightning_version"] == lightning.__version__


@pytest.fixture(scope="module")
def keras_file(tmp_path_factory):
    """A model that Keras has saved, with a bfloat16 layer; on top of torch, as TensorFlow is heavy."""
    before = os.environ.get("KERAS_BACKEND")
    os.environ["KERAS_BACKEND"] = "torch"
    try:
        keras = library("keras")
    finally:
        if before is None:
            del os.environ["KERAS_BACKEND"]
        else:
            os.environ["KERAS_BACKEND"] = before
    layers = keras.layers
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2), layers.Dense(4, dtype="bfloat16")])
    model.layers[0].set_weights([np.full((3, 2), 0.5, np.float32), np.array([1, np.nan], np.float32)])
    path = tmp_path_factory.mktemp("keras") / "model.keras"
    model.save(path)
    return path, keras.__version__


def test_a_keras_model_tells_its_layers_and_its_weights(tmp_path, keras_file):
    path, version = keras_file
    shutil.copy(path, tmp_path)
    found = only(tmp_path, "model.keras")
    told = {tensor.name: tensor.statistics for tensor in found.tensors}
    assert (found.format, found.faults) == ("Keras model", ())
    assert (found.scalars["class"], found.scalars["keras_version"]) == ("Sequential", version)
    assert (told["layers.dense.vars.0"].shape, told["layers.dense.vars.0"].mean) == ((3, 2), 0.5)
    assert told["layers.dense.vars.1"].nan == 1
    assert told["layers.dense_1.vars.0"].dtype == "bfloat16"


def test_hdf5_weights_by_themselves(tmp_path, keras_file):
    path, _ = keras_file
    with zipfile.ZipFile(path) as archive:
        archive.extract("model.weights.h5", tmp_path)
    h5py = library("h5py")
    with h5py.File(tmp_path / "model.weights.h5", "a") as file:
        file["big-endian"] = np.arange(3, dtype=">f8")
        file["words"] = ["a", "b"]
        file["elsewhere"] = h5py.ExternalLink("other.h5", "secret")
        file.create_dataset("outside", (4,), "u1", external=[("/etc/hostname", 0, 4)])
        file.create_dataset("vast", (10**12,), "f4", chunks=(1000,))
        file.attrs["epoch"] = "seven"
    found = only(tmp_path, "model.weights.h5")
    told = {tensor.name: tensor.statistics for tensor in found.tensors}
    assert (found.format, found.scalars, found.values) == ("HDF5", {"epoch": "seven"}, 3)
    assert told["big-endian"].mean == 1
    assert not {"words", "elsewhere", "outside", "vast"} & told.keys()
    (fault,) = found.faults
    assert "tensor vast is said to have" in fault.reason


def test_damaged_keras_files_say_so(tmp_path, keras_file):
    path, _ = keras_file
    content = path.read_bytes()
    (tmp_path / "cut.keras").write_bytes(content[:-200])
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(tmp_path / "half.keras", "w") as half:
        for name in archive.namelist():
            data = archive.read(name)
            half.writestr(name, data[: len(data) // 2] if name.endswith(".h5") else data)
    for name in ("cut.keras", "half.keras"):
        (fault,) = only(tmp_path, name).faults
        assert fault.reason.startswith("is ")


@pytest.mark.parametrize("ocdbt", [True, False])
def test_an_orbax_checkpoint_tells_its_arrays_and_numbers(tmp_path, ocdbt):
    orbax, jax = library("orbax.checkpoint"), library("jax")
    state = {"dense": {"w": jax.numpy.full((3, 4), 0.5), "b": jax.numpy.zeros(4, jax.numpy.bfloat16)}, "step": 7}
    checkpointer = orbax.Checkpointer(orbax.PyTreeCheckpointHandler(use_ocdbt=ocdbt))
    checkpointer.save(tmp_path / "state", state)
    found = only(tmp_path, "state/_METADATA")
    told = {tensor.name: tensor.statistics for tensor in found.tensors}
    assert (found.format, found.faults, found.scalars) == ("Orbax", (), {"step": 7})
    assert (told["dense.w"].shape, told["dense.w"].mean) == ((3, 4), 0.5)
    assert (told["dense.b"].shape, told["dense.b"].dtype) == ((4,), "bfloat16")

    metadata = (tmp_path / "state" / "_METADATA").read_text()
    (tmp_path / "state" / "_METADATA").write_text(metadata.replace('"w"', '"nothing"'))
    (fault,) = only(tmp_path, "state/_METADATA").faults
    assert "dense.nothing cannot be read" in fault.reason
    (tmp_path / "state" / "_METADATA").write_text(metadata.replace('"w"', '"../../x"'))
    (fault,) = only(tmp_path, "state/_METADATA").faults
    assert "is no name that Orbax gives" in fault.reason
    (tmp_path / "state" / "_METADATA").write_text(metadata[:-40])
    (fault,) = only(tmp_path, "state/_METADATA").faults
    assert "is damaged" in fault.reason


def test_without_the_library_for_its_arrays_a_checkpoint_is_still_told(tmp_path, keras_file, monkeypatch):
    path, _ = keras_file
    shutil.copy(path, tmp_path)
    (tmp_path / "weights.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    key = [{"key": "w", "key_type": 2}]
    entry = {"key_metadata": key, "value_metadata": {"value_type": "jax.Array", "write_shape": [3, 4]}}
    (tmp_path / "_METADATA").write_text(json.dumps({"tree_metadata": {"('w',)": entry}}))
    for module in (hdf5_files, orbax_files):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    orbax, model, weights = summarise(tmp_path)
    assert model.format == "Keras model, whose weights are shown once h5py is installed"
    assert model.scalars["class"] == "Sequential"
    assert orbax.format == "Orbax, whose arrays are shown once tensorstore is installed"
    assert orbax.scalars == {"w": "array of 3×4"}
    assert weights.format == "HDF5"


@pytest.mark.parametrize("safe", [True, False])
def test_a_hugging_face_model_in_several_files(tmp_path, safe):
    hub = library("huggingface_hub")
    state = {f"layer.{at}": torch.full((100, 10), float(at)) for at in range(4)}
    hub.save_torch_state_dict(state, tmp_path, max_shard_size=9000, safe_serialization=safe)
    files = {file.path: file for file in summarise(tmp_path)}
    (index,) = (path for path in files if path.endswith(".index.json"))
    told = {tensor.name: tensor.statistics.mean for file in files.values() for tensor in file.tensors}
    assert told == {f"layer.{at}": float(at) for at in range(4)}
    assert (files[index].format, files[index].faults) == ("Hugging Face index", ())
    assert files[index].scalars == {"tensors": 4, "files": len(files) - 1, "total_size": 16000}

    shards = sorted(path for path in files if path != index)
    (tmp_path / shards[-1]).unlink()
    content = json.loads((tmp_path / index).read_text())
    content["weight_map"]["layer.99"] = shards[0]
    content["weight_map"]["layer.98"] = "../outside.safetensors"
    (tmp_path / index).write_text(json.dumps(content))
    assert "outside of the checkpoint" in only(tmp_path, index).faults[0].reason
    del content["weight_map"]["layer.98"]
    (tmp_path / index).write_text(json.dumps(content))
    reasons = [fault.reason for fault in only(tmp_path, index).faults]
    assert any(f"{shards[0]} does not hold layer.99" in reason for reason in reasons)
    assert any(f"names {shards[-1]}, which is not here" in reason for reason in reasons)


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("a.json", b'{"lr": 1}', "JSON"),
        ("config.yaml", b"a: 1\n", "YAML"),
        ("notes", "größer\n".encode(), "text"),
        ("state.pkl", b"\x80\x04K\x01.", "pickle, not opened: to load one is to run code from it"),
        ("x.npy", b"\x93NUMPY\x01\x00", "NumPy array"),
        ("x.bin", bytes(range(256)), None),
        ("none.txt", b"", "empty"),
        ("long.txt", "ö".encode() * 4000, "text"),
        ("x.gz", b"\x1f\x8b\x08\x00", "gzip"),
    ],
)
def test_what_no_reader_opens_is_told_by_its_kind(tmp_path, name, content, kind):
    (tmp_path / name).write_bytes(content)
    assert only(tmp_path, name).format == kind
    with open_file(tmp_path / name) as contents:
        assert contents is None
