/* How large the structures are here: a library that was compiled from an older source would read Python's wrongly. */

#include "transformer.h"

EXPORT void saccade_abi(int threads, int64_t *sizes)
{
    (void)threads;
    const size_t found[] = {sizeof(encoder), sizeof(encoder_weights), sizeof(decoder), sizeof(decoder_weights),
                            sizeof(past),    sizeof(memory),          sizeof(sources), sizeof(words),
                            sizeof(rules),   sizeof(hypotheses),      sizeof(byte_table)};
    for (size_t i = 0; i < sizeof(found) / sizeof(*found); i++) sizes[i] = (int64_t)found[i];
}

/* The hash of the sources that this library was built from. */
EXPORT const char *saccade_source_hash(void) { return SACCADE_SOURCE_HASH; }
