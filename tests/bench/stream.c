/* STREAM's copy and a plain read over arrays of the given size; the fastest of nine, bytes per second.
   Each goes over its arrays four times, as each of the probe's does: on a busy machine a short one
   is undisturbed more often than a long one.
   After J. McCalpin's definition: a copy counts the bytes read plus the bytes written. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

#define REPEATS 9
#define PASSES 4

static double most(const double *values) {
    double found = 0;
    for (int r = 0; r < REPEATS; r++) found = values[r] > found ? values[r] : found;
    return found;
}

int main(int count, char **words) {
    long n = (count > 1 ? atol(words[1]) : 128L << 20) / (long)sizeof(double);
    double *a = malloc(n * sizeof *a), *b = malloc(n * sizeof *b), copies[REPEATS], reads[REPEATS];
    double sum = 0;
    if (!a || !b) return 1;
#pragma omp parallel for
    for (long i = 0; i < n; i++) a[i] = 1.0, b[i] = 2.0;
    for (int r = 0; r < REPEATS; r++) {
        double begin = omp_get_wtime();
        for (int p = 0; p < PASSES; p++) {
#pragma omp parallel for
            for (long i = 0; i < n; i++) b[i] = a[i];
        }
        double middle = omp_get_wtime();
        double part = 0;
        for (int p = 0; p < PASSES; p++) {
#pragma omp parallel for reduction(+ : part)
            for (long i = 0; i < n; i++) part += a[i];
        }
        double end = omp_get_wtime();
        sum += part + b[r];
        copies[r] = 2.0 * PASSES * n * sizeof *a / (middle - begin);
        reads[r] = 1.0 * PASSES * n * sizeof *a / (end - middle);
    }
    printf("{\"copy\": %.0f, \"read\": %.0f, \"check\": %.0f}\n", most(copies), most(reads), sum);
    return 0;
}
