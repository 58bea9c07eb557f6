/* How the structures of interface.h lie in memory, to be compared with those in Python. */

#include <stddef.h>
#include <string.h>

#include "interface.h"

#define AT(type, field) (Int)offsetof(type, field)

/* Write the size of a structure and the offsets of its fields; returns how many numbers these are. */
EXPORT int struct_layout(const char *name, Int *to) {
    static const Int affine[] = {sizeof(Affine), AT(Affine, weight), AT(Affine, bias),
                                 AT(Affine, int8), AT(Affine, panels)};
    static const Int layer[] = {sizeof(Layer), AT(Layer, norms), AT(Layer, self_in),
                                AT(Layer, self_out), AT(Layer, cross_in), AT(Layer, cross_out),
                                AT(Layer, expand), AT(Layer, contract)};
    static const Int embedding[] = {sizeof(Embedding), AT(Embedding, role),
                                    AT(Embedding, symbols), AT(Embedding, positions)};
    static const Int view[] = {sizeof(View), AT(View, data), AT(View, head), AT(View, position)};
    static const Int attention[] = {
        sizeof(Attention), AT(Attention, query), AT(Attention, key), AT(Attention, value),
        AT(Attention, filler), AT(Attention, d_query), AT(Attention, d_key),
        AT(Attention, d_value), AT(Attention, gradient), AT(Attention, log_sum),
        AT(Attention, query_ends), AT(Attention, key_ends), AT(Attention, n_rows),
        AT(Attention, n_heads), AT(Attention, d_head), AT(Attention, kind),
        AT(Attention, causal), AT(Attention, most_keys)};
    static const Int cells[] = {
        sizeof(Cells), AT(Cells, n_rows), AT(Cells, n_layers), AT(Cells, n_heads),
        AT(Cells, d_head), AT(Cells, d_ff), AT(Cells, binds), AT(Cells, n_threads),
        AT(Cells, layers), AT(Cells, memory), AT(Cells, ends), AT(Cells, memory_ends),
        AT(Cells, state)};
    static const Int step[] = {
        sizeof(Step), AT(Step, n_rows), AT(Step, n_questions), AT(Step, n_layers),
        AT(Step, n_heads), AT(Step, d_head), AT(Step, d_ff), AT(Step, n_vocab),
        AT(Step, position), AT(Step, room), AT(Step, binds), AT(Step, n_source),
        AT(Step, n_threads), AT(Step, n_blocks), AT(Step, embedding), AT(Step, layers),
        AT(Step, memory), AT(Step, maps), AT(Step, source), AT(Step, starts),
        AT(Step, lengths), AT(Step, cache_rows), AT(Step, cache), AT(Step, cache_row),
        AT(Step, previous), AT(Step, logits)};
    static const struct {
        const char *name;
        const Int *layout;
        int size;
    } all[] = {{"Affine", affine, sizeof(affine)},    {"Layer", layer, sizeof(layer)},
               {"Embedding", embedding, sizeof(embedding)}, {"View", view, sizeof(view)},
               {"Attention", attention, sizeof(attention)}, {"Cells", cells, sizeof(cells)},
               {"Step", step, sizeof(step)}};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (!strcmp(name, all[i].name)) {
            memcpy(to, all[i].layout, all[i].size);
            return all[i].size / (int)sizeof(Int);
        }
    return 0;
}
