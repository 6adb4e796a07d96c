# SPDX-License-Identifier: BSD-3-Clause
"""Samples of torch.distributions with DTensors as parameters."""

import pytest
import torch
import torch.distributed as dist
from torch import distributions
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication

LAYOUTS = [[Replicate()], [Shard(0)], [Shard(1)]]
DISTRIBUTIONS = {
    "normal": lambda x: distributions.Normal(x, x + 1),
    "poisson": lambda x: distributions.Poisson(x * 20),
    "gamma": lambda x: distributions.Gamma(x + 0.5, x + 1),
    "dirichlet": lambda x: distributions.Dirichlet(x + 0.5),
    "binomial": lambda x: distributions.Binomial(torch.full_like(x, 30), probs=x),
    "beta": lambda x: distributions.Beta(x + 0.5, x + 1),
    "log_normal": lambda x: distributions.LogNormal(x, x + 1),
    "bernoulli": lambda x: distributions.Bernoulli(x),
    "normal around a number": lambda x: distributions.Normal(2.0, x + 1),
    "binomial of a number": lambda x: distributions.Binomial(30, probs=x),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_samples_do_not_depend_on_the_layout(run, name):
    parameters = torch.rand(5, 4, generator=torch.Generator().manual_seed(1))

    def check():
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        samples = []
        for layout in LAYOUTS:
            x = distribute_tensor(parameters, mesh, layout)
            torch.manual_seed(3)
            samples.append(DISTRIBUTIONS[name](x).sample().full_tensor())
        return samples

    results = run(check)
    for samples in results:
        for sample in samples:
            torch.testing.assert_close(sample, results[0][0])


@pytest.mark.parametrize(
    "make",
    [
        lambda x: distributions.Chi2(x + 1),
        lambda x: distributions.Exponential(x + 1),
    ],
)
def test_plain_tensors_that_distributions_make_are_replicated(run, make):
    parameters = torch.rand(5, 4, generator=torch.Generator().manual_seed(1))

    def check():
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        x = distribute_tensor(parameters, mesh, [Shard(0)])
        torch.manual_seed(3)
        with implicit_replication():
            return make(x).sample().full_tensor()

    results = run(check)
    for sample in results:
        torch.testing.assert_close(sample, results[0])


def test_samples_with_gradients(run):
    def check():
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layout in LAYOUTS:
            alpha = distribute_tensor(torch.full((5, 4), 2.0), mesh, layout)
            alpha.requires_grad_()
            x = torch._standard_gamma(alpha)
            x.sum().backward()
            expected = torch._standard_gamma_grad(
                torch.full((5, 4), 2.0), x.detach().full_tensor()
            )
            torch.testing.assert_close(alpha.grad.full_tensor(), expected)

    run(check)
