/* Equal rows of a matrix: what is a function of each row alone is computed once for them. The same
   token at the same position of several questions has the same embedding, for example. */

#ifndef TPT_DISTINCT_H
#define TPT_DISTINCT_H

#include <stdlib.h>

#include "kernels.h"

typedef struct {
    Int n, n_distinct; /* rows, and distinct ones among them */
    Int *first;        /* of each distinct row, the first row that equals it */
    Int *index_of;     /* of each row, its number among the distinct ones, in their order */
} Distinct;

static uint64_t hash_of(const char *row, Int n_words) {
    uint64_t sums[4] = {1, 2, 3, 4}, word; /* several, as a multiplication takes a few cycles */
    for (Int i = 0; i < n_words; i++) {
        memcpy(&word, row + i * sizeof(word), sizeof(word));
        sums[i % 4] = (sums[i % 4] ^ word) * 0x9e3779b97f4a7c15u;
        sums[i % 4] ^= sums[i % 4] >> 32;
    }
    return sums[0] + sums[1] * 3 + sums[2] * 5 + sums[3] * 7;
}

/* Find equal rows of `n_words` times 8 bytes; returns 1 if there is too little memory. */
static int find_distinct(Int n, Int n_words, const void *rows, Distinct *found) {
    Int n_slots = 4, size = n_words * sizeof(uint64_t);
    while (n_slots < 2 * n) n_slots *= 2;
    Int *first = malloc((2 * n + n_slots) * sizeof(Int)), *index_of = first + n, *slots = index_of + n;
    if (!first) return 1;
    *found = (Distinct){n, 0, first, index_of};
    for (Int slot = 0; slot < n_slots; slot++) slots[slot] = -1;
    for (Int row = 0; row < n; row++) {
        const char *own = (const char *)rows + row * size;
        Int slot = hash_of(own, n_words) & (n_slots - 1);
        while (slots[slot] >= 0 &&
               memcmp(own, (const char *)rows + first[slots[slot]] * size, size))
            slot = (slot + 1) & (n_slots - 1);
        if (slots[slot] < 0) {
            slots[slot] = found->n_distinct;
            first[found->n_distinct++] = row;
        }
        index_of[row] = slots[slot];
    }
    return 0;
}

static void free_distinct(Distinct *found) { free(found->first); }

/* Move the distinct rows, as in `find_distinct`, to the front. */
static void gather_rows(const Distinct *found, Int n_words, void *rows) {
    Int size = n_words * sizeof(uint64_t);
    for (Int i = 0; i < found->n_distinct; i++)
        if (found->first[i] != i)
            memcpy((char *)rows + i * size, (char *)rows + found->first[i] * size, size);
}

/* Copy the distinct rows, which are at the front, to all rows that equal them. The index of a row is
   never larger than its place. Going backwards, no row is read after it was overwritten. */
static void spread_rows(const Distinct *found, Int n_words, void *rows) {
    Int size = n_words * sizeof(uint64_t);
    for (Int row = found->n - 1; row >= 0; row--)
        if (found->index_of[row] != row)
            memcpy((char *)rows + row * size, (char *)rows + found->index_of[row] * size, size);
}

#endif
