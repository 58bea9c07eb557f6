"""The TP-Transformer's equations as plain loops: the yardstick for the real implementation.

Written from the paper (Schlag et al., "Enhancing the Transformer With Explicit Relational Encoding
for Math Problem Solving"), one function per equation, and never from the package. It is slow on
purpose: one unpadded example at a time, every state a float64 vector, position by position and head
by head. Parameters come as a flat dictionary in the layout of the authors' checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

Parameters = Mapping[str, Tensor]
States = Sequence[Tensor]  # one vector per position
Ids = Sequence[int]
Allowed = Sequence[Sequence[bool]]  # [query position][memory position]


def sub(parameters: Parameters, prefix: str) -> dict[str, Tensor]:
    """The entries below `prefix`, with the prefix and its dot removed."""
    start = prefix + "."
    return {name[len(start) :]: p for name, p in parameters.items() if name.startswith(start)}


def affine(p: Parameters, x: Tensor) -> Tensor:
    """W x + b, for one vector."""
    return p["weight"] @ x + p["bias"]


def layer_norm(p: Parameters, x: Tensor) -> Tensor:
    """LN in section 2: zero mean and unit (biased) variance over the components, then affine."""
    d = len(x)
    mean = sum((x[c] for c in range(d)), x.new_zeros(())) / d
    variance = sum(((x[c] - mean) ** 2 for c in range(d)), x.new_zeros(())) / d
    return p["weight"] * ((x - mean) / torch.sqrt(variance + 1e-5)) + p["bias"]


def feed_forward(p: Parameters, x: Tensor) -> Tensor:
    """Equation 5: W_g ReLU(W_f x + b_f) + b_g."""
    hidden = affine(sub(p, "linear1"), x)
    return affine(sub(p, "linear2"), torch.stack([torch.relu(unit) for unit in hidden]))


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + e^-x), for one number."""
    return 1 / (1 + torch.exp(-x))


def select(scores: Tensor, dictionary: Tensor) -> Tensor:
    """Jiang et al. (2021): the sum of the dictionary's unit vectors, weighed by a softmax."""
    exponentials = [torch.exp(score) for score in scores]
    total = sum(exponentials, scores.new_zeros(()))
    role = torch.zeros_like(dictionary[0])
    for exponential, vector in zip(exponentials, dictionary, strict=True):
        role = role + exponential / total * vector / torch.sqrt(vector @ vector)
    return role


def bind(
    binding: str,
    filler: Tensor,
    role: Tensor | None,
    m: Tensor | None = None,
    n: Tensor | None = None,
    constant: Tensor | None = None,
    dictionary: Tensor | None = None,
) -> Tensor:
    """One filler bound to one role: the product inside equation 4, or another in its place."""
    d = len(filler)
    if binding == "none":  # the plain Transformer
        return filler
    if binding == "constant":  # a role that no state changes
        assert constant is not None
        return torch.stack([filler[c] * constant[c] for c in range(d)])
    if role is None:
        raise ValueError(f"the binding {binding!r} needs a role")
    if binding == "hadamard":  # equation 4: the diagonal of the tensor product
        return torch.stack([filler[c] * role[c] for c in range(d)])
    if binding == "residual":
        return torch.stack([filler[c] * (1 + role[c]) for c in range(d)])
    if binding in {"sigmoid", "value"}:  # Qiu et al. (2025), after attention and after the values
        gates = role if len(role) == d else role.expand(d)  # one for each element, or one for all
        return torch.stack([filler[c] * sigmoid(gates[c]) for c in range(d)])
    if binding == "silu":
        return torch.stack([filler[c] * role[c] * sigmoid(role[c]) for c in range(d)])
    if binding == "dictionary":
        assert dictionary is not None
        selected = select(role, dictionary)
        return torch.stack([filler[c] * selected[c] + filler[c] for c in range(d)])
    if binding == "tensor":  # section 7: the full tensor product, filler-major
        return torch.stack([filler[i] * role[j] for i in range(d) for j in range(d)])
    if binding == "low-rank":  # equation 13; the rows of m and n are the paper's m_c and n_c
        assert m is not None
        assert n is not None
        return torch.stack([(m[c] @ filler) * (n[c] @ role) for c in range(len(m))])
    if binding == "convolution":  # not in the paper: circular convolution by its definition
        zero = filler.new_zeros(())
        return torch.stack(
            [sum((filler[k] * role[(c - k) % d] for k in range(d)), zero) for c in range(d)]
        )
    raise ValueError(f"unknown binding {binding!r}")


def degrees_of_match(query: Tensor, keys: States, allowed: Sequence[bool]) -> dict[int, Tensor]:
    """Equation 3: alpha_i of each position i that this query may attend to (at least one)."""
    scores = {i: (query @ keys[i]) / math.sqrt(len(query)) for i in range(len(keys)) if allowed[i]}
    largest = max(score.item() for score in scores.values())  # a constant: it cancels
    exponentials = {i: torch.exp(score - largest) for i, score in scores.items()}
    total = sum(exponentials.values(), query.new_zeros(()))
    return {i: exponential / total for i, exponential in exponentials.items()}


def head(p: Parameters, h: int, d_head: int) -> dict[str, Tensor]:
    """W^h and b^h of equation 1: the rows that belong to head h."""
    rows = slice(h * d_head, (h + 1) * d_head)
    return {"weight": p["weight"][rows], "bias": p["bias"][rows]}


def attention(
    p: Parameters, queries: States, memory: States, allowed: Allowed, n_heads: int, binding: str
) -> list[Tensor]:
    """TPMHA, equations 1 to 4: query and role from `queries`, key and value from `memory`.

    The binding `value` binds every value to a role from its own state, before it is retrieved.
    """
    d_head = len(p["W_q.bias"]) // n_heads
    # Equation 4 gives each head a bias; the layout holds their sum, so it is added once.
    outputs = [p["W_o.bias"] for _ in queries]
    for h in range(n_heads):
        w_q, w_k, w_v = (head(sub(p, name), h, d_head) for name in ("W_q", "W_k", "W_v"))
        w_r = None
        if "W_r.weight" in p:
            w_r = head(sub(p, "W_r"), h, len(p["W_r.bias"]) // n_heads)
        learned = {
            "low-rank": lambda h=h: {"m": p["M"][h], "n": p["N"][h]},
            "constant": lambda h=h: {"constant": p["C"][h * d_head : (h + 1) * d_head]},
            "dictionary": lambda: {"dictionary": p["R"]},
        }.get(binding, dict)()
        d_bound = p["W_o.weight"].shape[1] // n_heads
        w_o = p["W_o.weight"][:, h * d_bound : (h + 1) * d_bound]

        # Equation 1
        keys = [affine(w_k, state) for state in memory]
        values = [affine(w_v, state) for state in memory]
        if binding == "value":
            assert w_r is not None
            values = [
                bind(binding, value, affine(w_r, state))
                for value, state in zip(values, memory, strict=True)
            ]
        for t, state in enumerate(queries):
            query = affine(w_q, state)
            role = affine(w_r, state) if w_r is not None else None

            # Equations 3 and 2
            alpha = degrees_of_match(query, keys, allowed[t])
            filler = sum((values[i] * alpha[i] for i in alpha), torch.zeros_like(query))

            # Equation 4
            bound = filler if binding == "value" else bind(binding, filler, role, **learned)
            outputs[t] = outputs[t] + w_o @ bound
    return outputs


def normalise(p: Parameters, states: States) -> list[Tensor]:
    """LayerNorm at every position."""
    return [layer_norm(p, state) for state in states]


def residual(states: States, changes: States) -> list[Tensor]:
    """z + sublayer(LN(z)) at every position."""
    return [state + change for state, change in zip(states, changes, strict=True)]


def encoder_cell(
    p: Parameters, states: States, allowed: Allowed, n_heads: int, binding: str
) -> list[Tensor]:
    """Section 2: LN, attention, LN, feed-forward, each with its residual; then one more LN."""
    z = normalise(sub(p, "layernorm1"), states)
    x = residual(states, attention(sub(p, "MHA"), z, z, allowed, n_heads, binding))
    z = normalise(sub(p, "layernorm2"), x)
    x = residual(x, [feed_forward(sub(p, "densefilter"), state) for state in z])
    return normalise(sub(p, "layernorm3"), x)


def decoder_cell(
    p: Parameters,
    states: States,
    memory: States,
    self_allowed: Allowed,
    cross_allowed: Allowed,
    n_heads: int,
    binding: str,
) -> list[Tensor]:
    """Section 2.3: as the encoder's cell, with a second attention over the final encoder states."""
    z = normalise(sub(p, "layernorm1"), states)
    x = residual(states, attention(sub(p, "selfAttn"), z, z, self_allowed, n_heads, binding))
    z = normalise(sub(p, "layernorm2"), x)
    x = residual(x, attention(sub(p, "encAttn"), z, memory, cross_allowed, n_heads, binding))
    z = normalise(sub(p, "layernorm3"), x)
    x = residual(x, [feed_forward(sub(p, "densefilter"), state) for state in z])
    return normalise(sub(p, "layernorm4"), x)


def position(t: int, d_model: int) -> Tensor:
    """Sine at the even components, cosine of the same angle at the odd ones; t counts from 0."""
    components = []
    for c in range(d_model):
        angle = t / 10000 ** (2 * (c // 2) / d_model)
        components.append(math.sin(angle) if c % 2 == 0 else math.cos(angle))
    return torch.tensor(components, dtype=torch.float64)


def embed(p: Parameters, ids: Ids) -> list[Tensor]:
    """Layer 0: x = sqrt(d_model) E_id + position, then x * (W_p x + b_p + 1) if W_p exists."""
    d_model = p["tok_embedding.weight"].shape[1]
    states = []
    for t, symbol in enumerate(ids):
        x = math.sqrt(d_model) * p["tok_embedding.weight"][symbol] + position(t, d_model)
        if "linear.weight" in p:
            # Adding 1 to W_p x is what the paper's "W_p from N(1, 1)" (section 4.1) comes to.
            x = x * (affine(sub(p, "linear"), x) + 1)
        states.append(x)
    return states


def layers(parameters: Parameters, stack: str) -> list[dict[str, Tensor]]:
    """The parameters of each cell of the encoder or decoder, from the lowest layer up."""
    found: list[dict[str, Tensor]] = []
    while p := sub(parameters, f"{stack}.layers.{len(found)}"):
        found.append(p)
    return found


def encoder(parameters: Parameters, source: Ids, n_heads: int, binding: str) -> list[Tensor]:
    """Section 2: every position attends to every position."""
    states = embed(sub(parameters, "embedding"), source)
    allowed = [[True for _ in source] for _ in source]
    for p in layers(parameters, "encoder"):
        states = encoder_cell(p, states, allowed, n_heads, binding)
    return states


def decoder(
    parameters: Parameters, target: Ids, memory: States, n_heads: int, binding: str
) -> list[Tensor]:
    """Section 2.3: position t attends to the target up to itself, and to all of the memory."""
    states = embed(sub(parameters, "embedding"), target)
    self_allowed = [[i <= t for i in range(len(target))] for t in range(len(target))]
    cross_allowed = [[True for _ in memory] for _ in target]
    for p in layers(parameters, "decoder"):
        states = decoder_cell(p, states, memory, self_allowed, cross_allowed, n_heads, binding)
    return states


def logits(parameters: Parameters, source: Ids, target: Ids, n_heads: int, binding: str) -> Tensor:
    """Equation 6 before its softmax; `target` is the decoder's input, so it begins with <sos>."""
    memory = encoder(parameters, source, n_heads, binding)
    states = decoder(parameters, target, memory, n_heads, binding)
    symbols = parameters["embedding.tok_embedding.weight"]
    return torch.stack([symbols @ state for state in states])  # (target, n_vocab)


def random_parameters(
    *,
    n_layers: int,
    d_model: int,
    d_ff: int,
    n_heads: int,
    n_vocab: int,
    binding: str,
    rank: int | None = None,
    embedding_binding: bool = True,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Every entry of the layout, drawn so that each one matters and no softmax saturates."""
    if d_model % n_heads:
        raise ValueError(f"d_model {d_model} is not a multiple of n_heads {n_heads}")
    if binding == "low-rank" and not rank:
        raise ValueError("the binding 'low-rank' needs a rank")
    d_head = d_model // n_heads
    d_bound = {"tensor": d_head * d_head, "low-rank": rank or 0}.get(binding, d_head)
    drawn: dict[str, Tensor] = {}

    def draw(name: str, *shape: int, mean: float = 0.0, scale: float) -> None:
        normal = torch.randn(shape, generator=generator, dtype=torch.float64)
        drawn[name] = mean + scale * normal

    def draw_affine(name: str, d_in: int, d_out: int) -> None:
        draw(f"{name}.weight", d_out, d_in, scale=d_in**-0.5)
        draw(f"{name}.bias", d_out, scale=0.3)

    draw("embedding.tok_embedding.weight", n_vocab, d_model, scale=d_model**-0.5)
    drawn["embedding.pe"] = torch.stack([position(t, d_model) for t in range(200)])[None]
    if embedding_binding:
        draw_affine("embedding.linear", d_model, d_model)

    cells = (("encoder", ("MHA",), 3), ("decoder", ("selfAttn", "encAttn"), 4))
    for stack, attentions, n_norms in cells:
        for cell in (f"{stack}.layers.{layer}" for layer in range(n_layers)):
            for norm in range(1, n_norms + 1):
                draw(f"{cell}.layernorm{norm}.weight", d_model, mean=1.0, scale=0.2)
                draw(f"{cell}.layernorm{norm}.bias", d_model, scale=0.2)
            for name in (f"{cell}.{attention_name}" for attention_name in attentions):
                for matrix in ("W_q", "W_k", "W_v") + (("W_r",) if binding != "none" else ()):
                    draw_affine(f"{name}.{matrix}", d_model, d_model)
                draw_affine(f"{name}.W_o", n_heads * d_bound, d_model)
                if binding == "low-rank":
                    draw(f"{name}.M", n_heads, d_bound, d_head, scale=d_head**-0.5)
                    draw(f"{name}.N", n_heads, d_bound, d_head, scale=d_head**-0.5)
            draw_affine(f"{cell}.densefilter.linear1", d_model, d_ff)
            draw_affine(f"{cell}.densefilter.linear2", d_ff, d_model)
    return drawn
