/* Attention within packed rows. */

#ifndef TPT_ATTENTION_H
#define TPT_ATTENTION_H

#include "interface.h"

#define BLOCK 24 /* queries at a time, an even number; their weights fit into the first-level cache */

/* The fillers or, with `d_query`, the gradients. Returns whether there was too little memory. */
int attention(const Attention *given, Int n_threads);

/* One head of one row in bfloat16, for processors that multiply it. */
int multiplies_bfloat16(const Attention *work); /* whether these can be used */
Int bfloat16_scratch(Int most_keys, Int d_head); /* bytes */
void forward_bfloat16(const Attention *work, Int row, Int head, char *scratch);
void backward_bfloat16(const Attention *work, Int row, Int head, char *scratch);

#endif
