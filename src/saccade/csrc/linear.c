/* Linear layers of a few rows. */

#include "transformer_sublayers.h"

/* out (rows, outputs) = x (rows, inputs) · weight (outputs, inputs)^T + bias, if there is one. */
EXPORT int saccade_linear(int threads, int64_t rows, int64_t inputs, int64_t outputs, const float *x,
                          const float *weight, const float *bias, float *out)
{
    int team = rows * inputs * outputs < GEMM_PARALLEL_THRESHOLD ? 1 : threads;
    int status = linear(team, rows, inputs, outputs, x, weight, (weight_forms){NULL, NULL}, 0, out);
    for (int64_t row = 0; bias && row < rows; row++)
        for (int64_t i = 0; i < outputs; i++) out[row * outputs + i] += bias[i];
    return status;
}
