"""Goal: a training run whose ranks are killed goes on from its last checkpoint with another number
of ranks, and every later loss and weight is bit for bit that of a run that nobody disturbed.

Method: a small GPT. Each rank computes the whole batch, on the GPU where there is one, with the
weights replicated as under DDP; the optimizer's moments are sharded over the ranks as under
ZeRO-1. No number is summed over ranks, so that the arithmetic is the same for any number of them,
and whatever differs came out of the checkpoint. SIGKILL meets all ranks while they write one.
"""

import os
import signal
import socket

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from keyway.torch import StorageReader, StorageWriter  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Shard  # noqa: E402

VOCABULARY, WIDTH, HEADS, BLOCKS, CONTEXT, BATCH = 97, 72, 3, 2, 24, 4
STEPS, SAVED_AT, KILLED_AT = 9, 3, 6
RATE, BETAS, EPSILON = 3e-3, (0.9, 0.95), 1e-8
#: How long ranks may take, in seconds.
PATIENCE = 120


class Block(nn.Module):
    """Causal attention and a perceptron, each behind a norm."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        split = self.qkv(self.norms[0](x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
        hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        x = x + self.out((weights @ value).transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Parameter(torch.randn(CONTEXT, WIDTH) / 10)
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.places)))


class Training:
    """One rank's part."""

    def __init__(self, rank, world):
        self.rank, self.world, self.step = rank, world, 0
        self.mesh = init_device_mesh("cpu", (world,))
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.manual_seed(7)
        self.model = Gpt().to(self.device)
        self.data = torch.Generator().manual_seed(11)
        self.moments = [
            {name: self.shard(torch.zeros(p.shape)) for name, p in self.model.named_parameters()}
            for _ in range(2)
        ]

    def own(self, tensor):
        """This rank's rows, as `Shard(0)` divides them."""
        rows = tensor.chunk(self.world)
        return rows[self.rank] if self.rank < len(rows) else tensor[:0]

    def shard(self, tensor):
        own = self.own(tensor).clone()
        placed = {"shape": tensor.shape, "stride": tensor.stride()}
        return DTensor.from_local(own, self.mesh, [Shard(0)], run_check=False, **placed)

    def state(self):
        return {
            "model": self.model.state_dict(),
            "first": self.moments[0],
            "second": self.moments[1],
            "progress": {"step": self.step, "data": self.data.get_state()},
        }

    def save(self, client, url):
        dcp.save(self.state(), storage_writer=StorageWriter(url, client=client))

    def load(self, client, url):
        state = self.state()
        dcp.load(state, storage_reader=StorageReader(url, client=client))
        self.model.load_state_dict(state["model"])
        self.step = state["progress"]["step"]
        self.data.set_state(state["progress"]["data"])

    def train(self):
        """One step; its loss."""
        text = torch.randint(VOCABULARY, (BATCH, CONTEXT + 1), generator=self.data)
        text = text.to(self.device)
        logits = self.model(text[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, VOCABULARY), text[:, 1:].reshape(-1))
        names, weights = zip(*self.model.named_parameters(), strict=True)
        gradients = torch.autograd.grad(loss, weights)
        self.step += 1
        with torch.no_grad():
            for name, weight, gradient in zip(names, weights, gradients, strict=True):
                weight.copy_(self.updated(name, weight.cpu(), gradient.cpu()))
        return loss.item()

    def updated(self, name, weight, gradient):
        """Adam, each rank on its rows: one rounding for each operation, in every lane."""
        gradient = self.own(gradient)
        first, second = (moments[name].to_local() for moments in self.moments)
        first.mul_(BETAS[0]).add_(gradient.mul(1 - BETAS[0]))
        second.mul_(BETAS[1]).add_(gradient.mul(gradient).mul(1 - BETAS[1]))
        scale = second.div(1 - BETAS[1] ** self.step).sqrt().add(EPSILON)
        change = first.div(1 - BETAS[0] ** self.step).div(scale).mul(RATE)
        rows = [None] * self.world
        dist.all_gather_object(rows, self.own(weight).sub(change))
        return torch.cat(rows)


def run(rank, world, port, client, prefix, resumed_from, tell):
    """A rank's life. Rank 0 tells what happens; `tell` is its end of a pipe."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    say = tell.send if rank == 0 else lambda _: None
    training = Training(rank, world)
    if resumed_from is not None:
        training.load(client, f"{prefix}step-{resumed_from}")
        assert training.step == resumed_from
    while training.step < STEPS:
        say(("loss", training.step, training.train()))
        if resumed_from is None and prefix and training.step in (SAVED_AT, KILLED_AT):
            say(("saving", training.step))
            training.save(client, f"{prefix}step-{training.step}")
            say(("saved", training.step))
    # As plain bytes: a tensor in a pipe is a descriptor that goes with its process.
    weights = training.model.state_dict().items()
    say(("end", {name: tensor.cpu().numpy() for name, tensor in weights}))
    dist.barrier()
    dist.destroy_process_group()


class Ranks:
    """The processes of one run."""

    def __init__(self, world, client, prefix, resumed_from=None):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        context = mp.get_context("spawn")
        self.heard, tell = context.Pipe(duplex=False)
        arguments = (world, port, client, prefix, resumed_from, tell)
        self.processes = [
            context.Process(target=run, args=(rank, *arguments), daemon=True)
            for rank in range(world)
        ]
        for process in self.processes:
            process.start()
        # What remains are the ranks' ends: their deaths are heard.
        tell.close()

    def hear(self):
        assert self.heard.poll(PATIENCE), "the ranks are silent"
        return self.heard.recv()

    def finish(self):
        """All losses by step, and the weights in the end."""
        losses = {}
        while (told := self.hear())[0] != "end":
            if told[0] == "loss":
                losses[told[1]] = told[2]
        for process in self.processes:
            process.join(PATIENCE)
            assert process.exitcode == 0
        return losses, {name: torch.from_numpy(array) for name, array in told[1].items()}

    def kill(self):
        for process in self.processes:
            os.kill(process.pid, signal.SIGKILL)
        for process in self.processes:
            process.join(PATIENCE)
            assert process.exitcode == -signal.SIGKILL


def test_killed_and_resumed_on_other_ranks(client, prefix):
    losses, weights = Ranks(2, client, "").finish()
    assert sorted(losses) == list(range(STEPS)) and losses[STEPS - 1] != losses[0]

    ranks = Ranks(2, client, prefix)
    before = {}
    while (told := ranks.hear()) != ("saving", KILLED_AT):
        if told[0] == "loss":
            before[told[1]] = told[2]
    ranks.kill()
    assert before == {step: losses[step] for step in range(KILLED_AT)}

    # The checkpoint that was being written is there as a whole, or not at all.
    there = []
    for step in (SAVED_AT, KILLED_AT):
        try:
            client.head(f"{prefix}step-{step}/.metadata")
            there.append(step)
        except FileNotFoundError:
            pass
    assert there[0] == SAVED_AT
    for world in (1, 3):
        for step in there:
            again, ended = Ranks(world, client, prefix, resumed_from=step).finish()
            assert again == {later: losses[later] for later in range(step, STEPS)}
            assert ended.keys() == weights.keys()
            for name, tensor in weights.items():
                assert torch.equal(ended[name], tensor), (world, step, name)
