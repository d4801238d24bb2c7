"""Goal: files are those of the safetensors library, both ways, and tensors are views."""

import json

import numpy
import pytest
from keyway import safetensors as ours

theirs = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")


def tensors():
    random = numpy.random.default_rng(7)
    return {
        "layers.0.weight": random.standard_normal((33, 65)).astype(numpy.float32),
        "layers.0.bias": random.standard_normal(65).astype(numpy.float16),
        "mask": random.integers(0, 2, 7).astype(bool),
        "steps": numpy.array(12345),
        "none": numpy.zeros((0, 4), dtype=numpy.int64),
        "embedding": random.standard_normal((1000, 300)),
    }


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, name
        assert (numpy.asarray(found[name]) == tensor).all(), name


def test_theirs_is_read(client, prefix):
    client.put(prefix + "f", theirs.save(tensors(), metadata={"format": "np"}))
    found = ours.load_file(prefix + "f", framework="numpy", client=client)
    same(found, tensors())
    bases = {id(ours_base(tensor)) for tensor in found.values() if tensor.size}
    assert len(bases) == 1, "all are views of one buffer"
    header = ours.read_header(prefix + "f", client=client)
    assert header.metadata == {"format": "np"} and header.data_start % 8 == 0


def ours_base(array):
    while array.base is not None:
        array = array.base
    return array


def test_ours_is_theirs(client, prefix):
    result = ours.save_file(tensors(), prefix + "f", {"step": "5"}, client=client)
    assert result.verified
    same(theirs.load(bytes(client.get(prefix + "f"))), tensors())
    same(ours.load(client.get(prefix + "f"), framework="numpy"), tensors())


def test_names_alone(client, prefix):
    many = {f"t{n:04}": numpy.full(5000, n, dtype=numpy.float32) for n in range(500)}
    ours.save_file(many, prefix + "f", client=client)
    wanted = ["t0000", "t0001", "t0004", "t0250", "t0499"]
    found = ours.load_file(prefix + "f", names=wanted, framework="numpy", client=client)
    same(found, {name: many[name] for name in wanted})
    assert ours_base(found["t0000"]).nbytes < 300_000
    with pytest.raises(KeyError):
        ours.load_file(prefix + "f", names=["t9"], framework="numpy", client=client)


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h["a"].update(data_offsets=[0, 12]),
        lambda h: h["a"].update(data_offsets=[4, 12]),
        lambda h: h["a"].update(data_offsets=[0, 1 << 40]),
        lambda h: h["a"].update(shape=[1 << 62, 8]),
        lambda h: h["a"].update(dtype="F13"),
        lambda h: h["b"].update(data_offsets=[0, 8]),
    ],
)
def test_headers_that_lie(change):
    header = {
        "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "b": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]},
    }
    encode = lambda h: (lambda t: len(t).to_bytes(8, "little") + t)(json.dumps(h).encode())  # noqa: E731
    good = encode(header)
    assert len(ours.parse_header(good, len(good) + 16).entries) == 2
    change(header)
    bad = encode(header)
    with pytest.raises(ValueError):
        ours.parse_header(bad, len(bad) + 16)
    for front in (b"", b"\xff" * 8, b"\x02" + bytes(7) + b"{"):
        with pytest.raises(ValueError):
            ours.parse_header(front, 1 << 20)


def raw(tensor):
    return tensor.detach().contiguous().reshape(-1).view(dtype=__import__("torch").uint8)


def test_with_torch(client, prefix):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from safetensors.torch import load, save

    made = {
        "b": torch.randn(100, 3).bfloat16(),
        "f8": torch.randn(17).to(torch.float8_e4m3fn),
        "w": torch.randn(64, 64, requires_grad=True),
        "t": torch.randn(8, 9).t(),
        "n": torch.tensor(3),
    }
    ours.save_file(made, prefix + "ours", client=client)
    client.put(prefix + "theirs", save({k: v.detach().contiguous() for k, v in made.items()}))
    for name in ("ours", "theirs"):
        found = ours.load_file(prefix + name, client=client)
        judged = load(bytes(client.get(prefix + name)))
        for key, tensor in made.items():
            assert (found[key].dtype, found[key].shape) == (tensor.dtype, tensor.shape)
            assert torch.equal(raw(found[key]), raw(tensor)), key
            assert torch.equal(raw(judged[key]), raw(tensor)), key
        storages = {tensor.untyped_storage().data_ptr() for tensor in found.values()}
        assert len(storages) == 1, "all are views of one buffer"
    loaded = ours.load(client.get(prefix + "ours"))
    assert torch.equal(loaded["w"], made["w"])
