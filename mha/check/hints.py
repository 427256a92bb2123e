"""One hint for each mistake: what is true, not how to write it."""

HINTS = {
    "changes its input": "Compute new tensors; the caller still needs the old ones.",
    # splitting and merging
    "wrong split": "Memory holds token after token, so cut each token: seq before num_heads.",
    "no transpose": "The axes are right but not in order: heads belong beside the batch.",
    "seq and head_dim swapped": "The last two axes are (seq, head_dim), in this order.",
    "(d h) order": "A head is head_dim features side by side, not every num_heads-th feature.",
    "wrong merge": "Transpose back first; reshape alone keeps the shape and scrambles the tokens.",
    "wrong split and merge": "Two mistakes do not cancel; permute the tokens and you see it.",
    **{
        f"wrong split of {x}": f"{x} alone is cut without its transpose; split it as the others."
        for x in "qkv"
    },
    "num_heads ignored": "This is one head as wide as d_model; each head has head_dim features.",
    "view raises": "After a transpose these axes lie apart in memory; one step copies them.",
    "not merged": "num_heads and head_dim become one axis, d_model.",
    "num_heads and head_dim swapped": "seq and num_heads change places; head_dim is neither.",
    "mean, not sum": "Each head adds its part; nothing is averaged.",
    "mean over heads": "Heads are put side by side, not averaged.",
    "sum over heads": "Heads are put side by side, not added.",
    "one head only": "The result needs every head.",
    "next head": "Head 0 is the first; this is the one after.",
    "counts from 1": "Heads are counted from 0.",
    "first head always": "The argument says which head.",
    "axis of size 1 left": "One head has no heads axis: (batch, seq, head_dim).",
    "slice of tokens": "A head is a slice of the width, not of the tokens.",
    "heads before batch": "Batch comes first: all heads of sequence 0, then those of 1.",
    # attention
    "not transposed": "Rows are queries, columns are keys.",
    "elementwise": "Every output row sums over all keys; that is a matrix product.",
    "plain mean": "The weights decide how much of each row of v goes into the average.",
    "averaged twice": "The weights sum to 1: this sum is the average already.",
    "k and v swapped": "Scores come from q and k; what is averaged is v.",
    "q and k swapped": "Rows of the scores are queries, so q comes first in the product.",
    "v forgotten": "k decides where to look; what is averaged is v.",
    "always causal": "Without a mask every query sees every key.",
    "softmax again": "These are weights already; their rows sum to 1.",
    "no scale": "The variance of a score grows with head_dim; something must undo that.",
    "scale by d_model": "Each head is a dot product of head_dim numbers, not of d_model.",
    "scale by num_heads": "The variance of a score is head_dim, whatever the number of heads.",
    "scale multiplied": "Scores grow with head_dim: divide by its root.",
    "scaled twice": "Divide by sqrt(head_dim) once; head_dim itself is too much.",
    "softmax over queries": "Each query spreads its weight over the keys: rows sum to 1.",
    "softmax over heads": "Heads do not share weight; each row of each head sums to 1.",
    "heads attend to heads": "The axis before the last is what attends: it must be seq.",
    # masks
    "mask ignored": "The scores that mask forbids must not reach the softmax.",
    "mask added": "Adding True adds 1; a forbidden score must become -inf.",
    "mask after softmax": "Forbidden keys took their share already; mask the scores, before.",
    "mask reversed": "True = may attend; here it is the other way round.",
    "mask without heads axis": "Broadcasting aligns from the right: batch lands on the heads axis.",
    "first mask for all": "Every sequence has a mask of its own.",
    "row for each key": "The rows are the seq_q queries, not all seq_k tokens.",
    "sees the next token": "A token sees itself and those before it: one diagonal fewer.",
    "diagonal the wrong way": "More keys than queries move the diagonal to the right.",
    "upper-left": "With more keys than queries, the last query sees all keys.",
    "strictly causal": "A token sees itself.",
    "pads the queries": "Padding hides columns, the keys; rows of padded queries may stay.",
    "pads queries too": "Padding hides columns, the keys; rows stay, or they would be empty.",
    "padding on the left": "Padding is at the end: the first length tokens are real.",
    "longest as seq_k": "There are seq_k columns, however long the longest sequence is.",
    "one token too many": "length tokens are real: positions 0 to length - 1.",
    "NaN rows": "A row that may attend to nothing gives 0/0; it has to become zeros.",
    "uniform rows": "-1e9 everywhere is like 0 everywhere: the row spreads over forbidden keys.",
    "repeat for repeat_interleave": "Neighbours share: a a b b, not a b a b.",
    "repeats each row": "Repeat the whole mask of a sequence, axis 0, not its rows.",
    # memory
    "reversed": "Sizes, strides and indices go in one order; the last axis moves fastest.",
    "back to front": "The last axis moves fastest: its stride is 1.",
    "bytes": "torch counts strides in elements.",
    "its own size too": "The stride of an axis is the product of the sizes after it, not its own.",
    "offset forgotten": "A view need not begin where its storage begins.",
    "strides ignored": "One step along an axis moves by its stride.",
    "must be contiguous": "Only these two axes have to fit each other; the others do not matter.",
    "size 1 forgotten": "An axis of size 1 takes no step, so its stride never matters.",
    "wrong axis's size": "A step of the first axis is as long as the whole of the second.",
    # proofs
    "compares shapes": "Wrong code has the right shape too; compare the numbers.",
    "input not permuted": "Permute the tokens that go in, too.",
    "output not permuted": "The output moves with the tokens; permute it as well.",
    "permuted twice": "Permuting the output again does not undo the first permutation.",
    "first token only": "Every token has to agree, not only the first.",
    "first sequence only": "Every sequence has to agree, not only the first.",
    "difference without abs": "A difference may be negative; compare its size.",
    "compares sums": "A sum hides which number moved where; compare number with number.",
    "exactly equal": "Sums in another order differ in the last bits; compare within a tolerance.",
    "no output projection": "The module multiplies by its out_proj at the end.",
    "bias forgotten": "in_proj_bias is stacked like in_proj_weight.",
    "output bias forgotten": "out_proj is a linear layer too: it adds its bias.",
    "weight not transposed": "A linear layer is x @ weight.T + bias.",
    "calls the module": "Build it from its weights: in_proj_weight, in_proj_bias, out_proj.",
    "split before projection": "Every feature of x reaches every head: project first, then split.",
    "split, then chunk": "The width holds all of q, then all of k, then all of v.",
    "same rows for all": "Each head has rows of w_o: head h owns h*head_dim and on.",
    "not summed": "The parts of the heads are still to be added up.",
    "columns of w_o": "out @ w_o meets the rows of w_o: head h owns rows h*head_dim and on.",
    "always": "Try an axis whose step is not as long as the next axis.",
    "never": "Fresh memory merges: that is what view does all day.",
    "next size only": "A step of one axis passes all axes after it, not only the next.",
    "divides by num_heads": "A head has d_model // num_heads features; count in these.",
    "divides by d_model": "A head has d_model // num_heads features; count in these.",
    "place inside the head": "The remainder is the place in its head; the head is the quotient.",
    "/ for //": "/ gives a fraction; // counts the whole heads before it.",
    "one feature": "A head is head_dim features wide.",
    "folds the tokens": "Batch and heads become one axis; the tokens keep theirs.",
    "sees the future": "Row i may see columns up to its own position, not from it on.",
    "not boolean": "A mask is boolean, True = may attend.",
    "not expanded": "The mask has an axis for the queries: (batch, seq_q, seq_k).",
    "mask multiplied": "A score of 0 is a score; a forbidden one must become -inf.",
    "sum over queries": "Each query has an average of its own.",
    "no softmax": "Scores become weights by the softmax over the keys.",
    "scale by seq": "A score is a sum over head_dim products; seq has no part in it.",
    # trained heads, costs
    "next token": "The previous key stands one column to the left.",
    "itself": "The diagonal is a token looking at itself.",
    "wraps around": "The first token has no previous one, and the last is none.",
    "diagonal of heads": "diagonal takes axes 0 and 1 unless told: dim1=-2, dim2=-1.",
    "all earlier tokens": "Only the token right before it counts, not all of them.",
    "not averaged": "One number for each head: the mean over its queries.",
    "counts the first row": "The first token has no previous one; leave its row out.",
    "ablates a token": "Axis 1 holds the heads.",
    "ablates a feature": "Axis 1 holds the heads.",
    "only the head": "Return all heads; only this one becomes zero.",
    "ablates the others": "Only this head becomes zero.",
    "heads forgotten": "Every head has scores of its own.",
    "batch forgotten": "Every sequence has scores of its own.",
    "elements, not bytes": "Multiply by the size of one element.",
    "itemsize ignored": "An element is itemsize bytes wide, not always 4.",
    "square of seq_k": "Scores have one row for each query.",
    "additions too": "Count the multiplications alone, one for each pair of numbers.",
    "seq once": "Every query meets every key: seq * seq.",
    "square of seq_q": "Scores have one column for each key.",
    "grows with num_heads": "More heads are narrower: num_heads * head_dim stays d_model.",
    "shrinks with num_heads": "There are num_heads products of head_dim; together d_model.",
    "one product only": "There are two products: q with k, and the weights with v.",
    "projections too": "q, k and v are projected already; count the two products.",
    "sum, not mean": "Divide by the number of rows that have a previous token.",
    "ablates the batch": "Axis 1 holds the heads.",
    "removes the head": "The merge needs every head; keep its place, with zeros.",
    "q and v swapped": "q asks, k answers, v is averaged; fused, they lie in this order.",
    "keys do not broadcast": "Give every group of query heads the key head that it shares.",
    "not transposed back": "The caller wants seq before num_heads again.",
    "not folded": "The result is (batch * num_heads, seq_q, seq_k).",
    "not unfolded": "The caller wants (batch, height, width, d_model) again.",
    "features attend": "Pixels attend; their d_model features are what is compared.",
    "columns attend": "Each pixel attends to the pixels of its own row.",
    "all pixels attend": "Each pixel attends to its own row only; rows must not see each other.",
}

# Mistakes that any exercise can meet, each with a hint.
SLIPS = {
    "a float for a size": "Sizes and positions are ints; / gives a float, // an int.",
    ".T on more than two axes": ".T reverses all axes; transpose(i, j) swaps two.",
    "view needs a copy": "It merges axes that lie apart in memory; contiguous() or reshape copies.",
    "too much memory": "It asks for more memory than there is. Which size is that large?",
    "no end": "It calls itself again and again.",
    "no return": "On this input your function ends without return, which gives None.",
    "print for return": "print shows a result and drops it; return hands it to the caller.",
    "remembers a call": "It gives an earlier result, as to other numbers of the same shape.",
    "NaN": "NaN comes from 0/0, inf - inf, 0 * inf or memory not filled. Print where it begins.",
    "gradient cut": "detach, .data, .item(), no_grad or NumPy cut it. A model cannot learn so.",
    "unknown name": "Is it misspelt, or defined in a cell that has not run?",
    "no value yet": "A name that is assigned in a function is its own, and it is read too early.",
    # results of another kind than asked for
    "a NumPy array": "torch.from_numpy makes a tensor of it.",
    "a list": "torch.stack joins tensors; torch.tensor takes numbers.",
    "a tuple": "torch.stack joins tensors; torch.tensor takes numbers.",
    "a generator": "yield makes a generator; return gives the result.",
    "a coroutine": "async def makes a coroutine; def is enough.",
    "an int, not a bool": "1 and 0 are numbers; True and False are bools.",
    "a tensor, not a bool": ".all() and bool(..) make one bool of it.",
    "a tensor, not a tuple": "tuple(x.tolist()) takes the numbers out.",
    "a tensor, not an int": ".item() takes the number out of a tensor of one.",
}

# How an error tells such a mistake.
ERRORS = {
    "a float for a size": r"float.*\bint|\bint.*float|lice indices must be int|got \(?float",
    "view needs a copy": r"view size is not compatible with input tensor's size and stride",
    "too much memory": r"MemoryError|can't allocate memory|not enough memory",
    "no end": r"RecursionError",
}

# What each exercise takes and returns. Shapes stand after the names.
TASKS = {
    "weighted_average": """weighted_average(attn_weights, v)

Take attn_weights (batch, seq_q, seq_k) and v (batch, seq_k, d_model).
Return the average of every query, (batch, seq_q, d_model).""",
    "attention_weights": """attention_weights(q, k)

Take q (batch, seq_q, head_dim) and k (batch, seq_k, head_dim).
Return the weights, (batch, seq_q, seq_k).""",
    "contiguous_strides": """contiguous_strides(shape)

Take a shape, a tuple of sizes. Return the strides of fresh memory of this shape, a tuple.""",
    "element": """element(index, strides, offset)

Take an index and the strides, two tuples of the same length, and the offset, an int.
Return the place of the element on the tape, an int.""",
    "can_merge": """can_merge(shape, strides, axis)

Take a shape, its strides, and the number of an axis.
Return whether view can merge this axis with the next one, True or False.""",
    "head_of": """head_of(feature, d_model, num_heads)

Take the number of a feature, d_model and num_heads.
Return the number of the head that gets the feature, an int.""",
    "one_head": """one_head(x, head, num_heads)

Take x (batch, seq, d_model), the number of a head, and num_heads.
Return its features, (batch, seq, head_dim).""",
    "split_heads": """split_heads(x, num_heads)

Take x (batch, seq, d_model) and num_heads. Return (batch, num_heads, seq, head_dim).""",
    "attend_per_head": """attend_per_head(qh, kh, vh)

Take qh, kh and vh, each (batch, num_heads, seq, head_dim).
Return the output of every head, in the same shape. There is no mask.""",
    "fold_heads": """fold_heads(qh)

Take qh (batch, num_heads, seq, head_dim).
Return (batch * num_heads, seq, head_dim), all heads of sequence 0 first.""",
    "causal_mask": """causal_mask(seq_q, seq_k)

Take seq_q and seq_k. Return a boolean (seq_q, seq_k), True = may attend.
The queries are the last seq_q of the seq_k tokens.""",
    "padding_mask": """padding_mask(lengths, seq_q, seq_k)

Take lengths (batch,), the number of real keys of each sequence, seq_q and seq_k.
Return a boolean (batch, seq_q, seq_k), True = may attend. Padding is at the end.""",
    "scaled_dot_product_attention": """scaled_dot_product_attention(q, k, v, mask=None)

Take q, k and v, whose last two axes are tokens and features, and a boolean mask that
broadcasts to the scores, or None. Return the output of attention. No row of the mask is empty.""",
    "masked_softmax": """masked_softmax(scores, mask)

Take scores and a boolean mask that broadcasts to them. Return the weights.
A row that may attend to nothing becomes zeros.""",
    "merge_heads": """merge_heads(out_h)

Take out_h (batch, num_heads, seq, head_dim).
Return (batch, seq, d_model), each token with its heads side by side.""",
    "permutation_test": """permutation_test(attention, x, order)

Take a function attention, x (batch, seq, d_model), and order, a tensor of seq positions.
Return whether attention treats the tokens alike in any order, True or False.""",
    "multi_head_attention": """multi_head_attention(q, k, v, num_heads, mask=None)

Take q, k and v (batch, seq, d_model), num_heads, and a boolean mask (batch, seq_q, seq_k) or
None. Return (batch, seq_q, d_model). Keys and values may be longer than queries.""",
    "match_torch": """match_torch(module, x, mask=None)

Take an nn.MultiheadAttention with batch_first=True, x (batch, seq, d_model), and a boolean mask
(batch, seq, seq), True = may attend, or None. Return what the module gives, without calling it.""",
    "sum_over_heads": """sum_over_heads(out_h, w_o)

Take out_h (batch, num_heads, seq, head_dim) and w_o (d_model, d_model).
Return what merge_heads(out_h) @ w_o gives, written as a sum over the heads.""",
    "previous_token": """previous_token(attn_weights)

Take attn_weights (num_heads, seq, seq). Return for each head the mean weight that a query puts
on the token before it, (num_heads,). The first query has none, so leave it out.""",
    "ablate_head": """ablate_head(out_h, head)

Take out_h (batch, num_heads, seq, head_dim) and the number of a head.
Return the same tensor with the result of this head set to zero. Leave out_h as it is.""",
    "score_bytes": """score_bytes(batch, num_heads, seq_q, seq_k, itemsize)

Take these sizes and itemsize, the bytes of one number.
Return the bytes that the scores of all heads take, an int.""",
    "multiplications": """multiplications(batch, seq, d_model, num_heads)

Take these sizes. Return the number of multiplications in the two matrix products of attention,
for all heads and sequences, an int.""",
    "fused_qkv": """fused_qkv(qkv, num_heads)

Take qkv (batch, seq, 3 * d_model), as one projection makes it, and num_heads.
Return the output of causal attention, (batch, seq, d_model).""",
    "grouped_query_attention": """grouped_query_attention(qh, kh, vh)

Take qh (batch, num_heads, seq, head_dim) and kh, vh with fewer heads.
Neighbouring query heads share a key head. Return the output, in the shape of qh.""",
    "heads_last": """heads_last(q, k, v)

Take q, k and v (batch, seq, num_heads, head_dim).
Return the output of attention in the same layout.""",
    "per_head_masks": """per_head_masks(mask, num_heads)

Take a mask (batch, seq_q, seq_k) and num_heads.
Return (batch * num_heads, seq_q, seq_k), all heads of sequence 0 first.""",
    "attend_along_rows": """attend_along_rows(x)

Take an image x (batch, height, width, d_model). Each pixel attends to those of its own row.
Return the output, in the same shape.""",
    "decode": """decode(q, k, v, num_heads)

Take the newest seq_q queries, keys and values of all seq_k tokens so far, and num_heads.
Return (batch, seq_q, d_model). The last query is the last token.""",
}
