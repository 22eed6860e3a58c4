/* Parts of Transformer layers that encoder and decoder share. */

#ifndef SACCADE_TRANSFORMER_SUBLAYERS_H
#define SACCADE_TRANSFORMER_SUBLAYERS_H

#include "blocked_gemm.h"
#include "dot_product_gemm.h"
#include "status.h"
#include "transformer.h"

/* Layer norm of x (rows, width). */
INLINE void layer_norm_rows(int64_t rows, int64_t width, const float *x, layer_norm_weights norm, float *out)
{
    for (int64_t row = 0; row < rows; row++, x += width, out += width) {
        float mean, inverse;
        mean_and_inverse_std(width, x, norm.epsilon, &mean, &inverse);
        layer_norm_row(width, x, mean, inverse, norm.weight, norm.bias, out);
    }
}

/* The input of the first sublayer: normalized if the norm comes first. */
INLINE void first_sublayer_input(stack_shape s, int64_t rows, const float *x, layer_norm_weights norm, float *normal)
{
    if (s.pre_norm)
        layer_norm_rows(rows, s.width, x, norm, normal);
    else if (rows) /* an empty tensor has a null pointer */
        memcpy(normal, x, 4 * (size_t)(rows * s.width));
}

/* x += sublayer + bias; normal = norm(x), which is also the new x if the norm comes last. */
INLINE void residual_layer_norm(stack_shape s, int64_t rows, const float *sublayer, const float *bias,
                                layer_norm_weights norm, float *x, float *normal)
{
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < s.width; i++) x[row * s.width + i] += sublayer[row * s.width + i] + bias[i];
    layer_norm_rows(rows, s.width, x, norm, normal);
    if (!s.pre_norm && rows) memcpy(x, normal, 4 * (size_t)(rows * s.width));
}

/* The outputs `first` to `last` of a linear layer; `first` is a multiple of BLOCK. Compiled once, so that the bits
 * do not depend on how threads share the outputs. */
static __attribute__((noinline)) void linear_outputs(int64_t first, int64_t last, int64_t rows, int64_t inputs,
                                                     int64_t outputs, const float *x, const float *weight,
                                                     const float *transposed, float *out)
{
    if (transposed)
        blocked_gemm(rows, inputs, last - first, x, transposed + first * inputs, out + first, outputs);
    else
        dot_product_gemm(rows, inputs, last - first, x, weight + first * inputs, out + first, outputs);
}

/* out (rows, outputs) = x (rows, inputs) · weight^T, by another form of the weight if there is one:
 * forms.int8[matrix] or forms.transposed[matrix]. Threads share the outputs, so that each reads its own part of the
 * weight. */
INLINE int linear(int threads, int64_t rows, int64_t inputs, int64_t outputs, const float *x, const float *weight,
                  weight_forms forms, int matrix, float *out)
{
    const float *transposed = forms.transposed ? forms.transposed[matrix] : NULL;
    if (forms.int8) return int8_linear(threads, rows, x, forms.int8 + matrix, out);
    if (threads == 1)
        linear_outputs(0, outputs, rows, inputs, outputs, x, weight, transposed, out);
    else
#pragma omp parallel num_threads(threads)
    {
        int64_t first, last;
        thread_range(blocks_of(outputs), &first, &last);
        last = last * BLOCK < outputs ? last * BLOCK : outputs;
        linear_outputs(first * BLOCK, last, rows, inputs, outputs, x, weight, transposed, out);
    }
    return SUCCESS;
}

/* The feed-forward sublayer, with its residual sum and norm. `hidden` (rows, inner) and `contracted` (rows, width)
 * are scratch. */
INLINE int feed_forward(int threads, stack_shape s, int64_t rows, const float *expand, const float *expand_bias,
                        const float *contract, const float *contract_bias, weight_forms forms, layer_norm_weights norm,
                        float *hidden, float *contracted, float *x, float *normal)
{
    int status = linear(threads, rows, s.width, s.inner, normal, expand, forms, EXPAND, hidden);
    for (int64_t row = 0; row < rows; row++) bias_relu_row(s.inner, hidden + row * s.inner, expand_bias);
    record(&status, linear(threads, rows, s.inner, s.width, hidden, contract, forms, CONTRACT, contracted));
    residual_layer_norm(s, rows, contracted, contract_bias, norm, x, normal);
    return status;
}

#endif
