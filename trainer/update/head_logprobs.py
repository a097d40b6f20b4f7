"""Log-probabilities straight from hidden states: a linear head and a log-softmax in one, in pieces of tokens.

Neither pass ever holds the logits of more than one piece. The backward pass computes them again and turns them into
their own gradient in place: d log p_t / d z = onehot_t - p and d entropy / d z = -p (log p + entropy).
"""

from __future__ import annotations

import torch
from torch import nn
from torch.autograd.function import FunctionCtx


def is_linear(head: nn.Module) -> bool:
    """Whether a head is a plain linear layer whose weight is all here (DeepSpeed spreads it over processes)."""
    return type(head) is nn.Linear and not hasattr(head.weight, "ds_id")


class HeadLogprobs(torch.autograd.Function):
    """(logprobs_N, entropy_N or None) of targets under softmax(head(hidden) / temperature), float32."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        hidden_NH: torch.Tensor,
        weight_VH: torch.Tensor,
        bias_V: torch.Tensor | None,
        targets_N: torch.Tensor,
        temperature: float,
        at_once: int,
        with_entropy: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Score ``targets_N`` with at most ``at_once`` tokens' logits in memory."""
        device = hidden_NH.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden_NH.dtype
        total_N = torch.empty(len(targets_N), device=hidden_NH.device)
        target_N, entropy_N = torch.empty_like(total_N), torch.empty_like(total_N) if with_entropy else None
        with torch.autocast(device, enabled=False):
            weight, bias = weight_VH.to(dtype), None if bias_V is None else bias_V.to(dtype)
            for piece in pieces_of(len(targets_N), at_once):
                logits = _logits(hidden_NH[piece].to(dtype), weight, bias, temperature)
                target_N[piece] = logits.gather(1, targets_N[piece, None])[:, 0]
                total_N[piece] = torch.logsumexp(logits, -1) if with_entropy else _consuming_logsumexp(logits)
                if entropy_N is not None:
                    probs = (logits - total_N[piece, None]).exp_()
                    entropy_N[piece] = total_N[piece] - probs.mul_(logits).sum(-1)
        ctx.save_for_backward(hidden_NH, weight_VH, bias_V, targets_N, total_N, entropy_N)
        ctx.dtype, ctx.temperature, ctx.at_once = dtype, temperature, at_once
        ctx.set_materialize_grads(False)
        return target_N - total_N, entropy_N

    @staticmethod
    def backward(
        ctx: FunctionCtx, by_logprob_N: torch.Tensor | None, by_entropy_N: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        """Gradients of hidden states, weight and bias, summed in float32."""
        hidden_NH, weight_VH, bias_V, targets_N, total_N, entropy_N = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        by_hidden = torch.empty_like(hidden_NH) if needs_hidden else None
        by_weight = torch.zeros_like(weight_VH, dtype=torch.float32) if needs_weight else None
        by_bias = torch.zeros_like(bias_V, dtype=torch.float32) if needs_bias else None
        weight, bias = weight_VH.to(ctx.dtype), None if bias_V is None else bias_V.to(ctx.dtype)
        with torch.autocast(hidden_NH.device.type, enabled=False):
            for piece in pieces_of(len(targets_N), ctx.at_once):
                hidden = hidden_NH[piece].to(ctx.dtype)
                slope = _logits(hidden, weight, bias, ctx.temperature)
                _into_slope(
                    slope,
                    targets_N[piece],
                    total_N[piece],
                    _of(entropy_N, piece),
                    _of(by_logprob_N, piece),
                    _of(by_entropy_N, piece),
                )
                slope = (slope if ctx.temperature == 1.0 else slope.div_(ctx.temperature)).to(ctx.dtype)
                if by_hidden is not None:
                    by_hidden[piece] = (slope @ weight).to(hidden_NH.dtype)
                if by_weight is not None:
                    _add_product(by_weight, slope, hidden)
                if by_bias is not None:
                    by_bias += slope.float().sum(0)
        return by_hidden, _like(by_weight, weight_VH), _like(by_bias, bias_V), None, None, None, None


def pieces_of(num_tokens: int, at_once: int) -> list[slice]:
    """Slices of at most ``at_once`` tokens, as even as possible.

    >>> pieces_of(5, 4)
    [slice(0, 3, None), slice(3, 5, None)]
    """
    size = -(-num_tokens // max(1, -(-num_tokens // at_once)))
    return [slice(start, min(num_tokens, start + size)) for start in range(0, num_tokens, max(1, size))]


def _logits(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, temperature: float) -> torch.Tensor:
    logits = nn.functional.linear(hidden, weight, bias).float()
    return logits if temperature == 1.0 else logits.div_(temperature)


def _consuming_logsumexp(logits_NV: torch.Tensor) -> torch.Tensor:
    """The logsumexp of each row; the logits are overwritten."""
    largest_N = logits_NV.amax(-1)
    return logits_NV.sub_(largest_N[:, None]).exp_().sum(-1).log_().add_(largest_N)


def _into_slope(
    logits_NV: torch.Tensor,
    targets_N: torch.Tensor,
    total_N: torch.Tensor,
    entropy_N: torch.Tensor | None,
    by_logprob_N: torch.Tensor | None,
    by_entropy_N: torch.Tensor | None,
) -> None:
    """Turn logits into the gradient of the loss by them, in place."""
    logprobs_NV = logits_NV.sub_(total_N[:, None])
    extra = None
    if by_entropy_N is not None:
        extra = (logprobs_NV + entropy_N[:, None]).mul_(-by_entropy_N[:, None])
    probs_NV = logprobs_NV.exp_()
    if extra is not None:
        extra.mul_(probs_NV)
    if by_logprob_N is None:
        probs_NV.zero_()
    else:
        probs_NV.mul_(-by_logprob_N[:, None])
        probs_NV.scatter_add_(1, targets_N[:, None], by_logprob_N[:, None].float())
    if extra is not None:
        probs_NV.add_(extra)


def _add_product(sum_VH: torch.Tensor, slope_NV: torch.Tensor, hidden_NH: torch.Tensor) -> None:
    if slope_NV.dtype is torch.float32:
        sum_VH.addmm_(slope_NV.t(), hidden_NH)
    else:
        sum_VH += slope_NV.t() @ hidden_NH


def _of(values: torch.Tensor | None, piece: slice) -> torch.Tensor | None:
    return None if values is None else values[piece]


def _like(gradient: torch.Tensor | None, parameter: torch.Tensor | None) -> torch.Tensor | None:
    return None if gradient is None else gradient.to(parameter.dtype)
