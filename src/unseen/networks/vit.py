"""Vision transformers (Dosovitskiy et al., 2021) under torchvision's state-dict names.

PyTorch's fast attention kernels have no second derivative: a method that differentiates twice (ELCFS) needs
`attention="plain"`, the same mathematics written out.
"""

from __future__ import annotations

import math
import re
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.errors import BadInput
from unseen.networks.headed import HeadedNet
from unseen.state import State

__all__ = ["Attention", "VisionTransformer", "vit_b_16", "vit_b_32"]

Attention = Literal["fast", "plain"]
_WIDTH, _DEPTH, _HEADS, _INNER = 768, 12, 12, 3072  # the "B" of ViT-B


class VisionTransformer(HeadedNet):
    """Features are the class token after the last norm, maps the patch tokens there as a grid."""

    stem_name = "conv_proj"
    head_name = "heads.head"
    head_fits_maps = True
    feature_size = _WIDTH

    def __init__(self, patch: int, outputs: int, channels: int, size: tuple[int, int], attention: Attention) -> None:
        super().__init__()
        self.grid = size[0] // patch, size[1] // patch
        self.conv_proj = nn.Conv2d(channels, _WIDTH, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, _WIDTH))
        self.encoder = _Encoder(self.grid[0] * self.grid[1] + 1, attention)
        head = nn.Linear(_WIDTH, outputs)
        self.heads = nn.Sequential()
        self.heads.add_module("head", head)
        nn.init.trunc_normal_(self.conv_proj.weight, std=math.sqrt(1 / (channels * patch * patch)))
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        nn.init.zeros_(self.conv_proj.get_parameter("bias"))

    def look(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        patches = self.conv_proj(x).flatten(2).transpose(1, 2)
        tokens = self.encoder(torch.cat([self.class_token.expand(x.shape[0], -1, -1), patches], 1))
        return tokens[:, 0], (tokens[:, 1:].transpose(1, 2).reshape(x.shape[0], _WIDTH, *self.grid),)

    def translate(self, state: State) -> State:
        """Also the names of torchvision's older files, and positions learnt on images of another size."""
        state = {re.sub(r"\.mlp\.linear_([12])\.", lambda m: f".mlp.{'0' if m[1] == '1' else '3'}.", k): v for k, v in state.items()}
        positions = state.get("encoder.pos_embedding")
        if positions is not None and positions.ndim == 3 and positions.shape[1] != self.encoder.pos_embedding.shape[1]:
            state["encoder.pos_embedding"] = _resample(positions, self.grid)
        return super().translate(state)


class _Encoder(nn.Module):
    def __init__(self, tokens: int, attention: Attention) -> None:
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.empty(1, tokens, _WIDTH).normal_(std=0.02))
        self.layers = nn.Sequential()
        for number in range(_DEPTH):
            self.layers.add_module(f"encoder_layer_{number}", _Layer(attention))
        self.ln = nn.LayerNorm(_WIDTH, eps=1e-6)

    def forward(self, tokens: Tensor) -> Tensor:
        normed: Tensor = self.ln(self.layers(tokens + self.pos_embedding))
        return normed


class _Layer(nn.Module):
    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(_WIDTH, eps=1e-6)
        self.self_attention = _SelfAttention(attention)
        self.ln_2 = nn.LayerNorm(_WIDTH, eps=1e-6)
        # the dropouts do nothing at rate 0; they keep torchvision's numbering, in which the second linear layer is number 3
        widen, narrow = nn.Linear(_WIDTH, _INNER), nn.Linear(_INNER, _WIDTH)
        self.mlp = nn.Sequential(widen, nn.GELU(), nn.Dropout(0), narrow, nn.Dropout(0))
        for linear in (widen, narrow):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.normal_(linear.bias, std=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attention(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))  # type: ignore[no-any-return]


class _SelfAttention(nn.Module):
    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attend = F.scaled_dot_product_attention if attention == "fast" else plain_attention
        self.in_proj_weight = nn.Parameter(torch.empty(3 * _WIDTH, _WIDTH))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * _WIDTH))
        self.out_proj = nn.Linear(_WIDTH, _WIDTH)
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, x: Tensor) -> Tensor:
        together = F.linear(x, self.in_proj_weight, self.in_proj_bias)
        query, key, value = together.view(*x.shape[:2], 3, _HEADS, _WIDTH // _HEADS).permute(2, 0, 3, 1, 4)
        mixed: Tensor = self.out_proj(self.attend(query, key, value).transpose(1, 2).flatten(2))
        return mixed


def plain_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """softmax(q k' / sqrt(d)) v, in operations that can be differentiated as often as one likes."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    return scores.softmax(-1) @ value


def _resample(positions: Tensor, grid: tuple[int, int]) -> Tensor:
    """Positions of a square grid, stretched to another; the class token's own stays."""
    side = math.isqrt(positions.shape[1] - 1)
    if side * side != positions.shape[1] - 1:
        return positions  # not a square grid: left to be refused for its shape
    square = positions[:, 1:].transpose(1, 2).reshape(1, -1, side, side)
    stretched = F.interpolate(square, size=grid, mode="bicubic", align_corners=True)
    return torch.cat([positions[:, :1], stretched.flatten(2).transpose(1, 2)], 1)


def _vit(patch: int, outputs: int, channels: int, size: tuple[int, int], attention: Attention) -> VisionTransformer:
    if size[0] % patch or size[1] % patch:
        raise BadInput(f"vit_b_{patch} on images of {size[0]} x {size[1]} pixels; both sides must be multiples of {patch}")
    return VisionTransformer(patch, outputs, channels, size, attention)


def vit_b_16(outputs: int, channels: int = 3, size: tuple[int, int] = (224, 224), attention: Attention = "fast") -> VisionTransformer:
    return _vit(16, outputs, channels, size, attention)


def vit_b_32(outputs: int, channels: int = 3, size: tuple[int, int] = (224, 224), attention: Attention = "fast") -> VisionTransformer:
    return _vit(32, outputs, channels, size, attention)
