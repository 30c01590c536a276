/* Numbers, times and base64 in JSON text as the values of columns: exact, or not at all. No function uses the GIL. */
#ifndef PENSTOCK_VALUES_H
#define PENSTOCK_VALUES_H

#include <stdint.h>

/* A number that is digits * 10^exponent. The digits have no zero at either end.
 *
 * first: where they begin in the text; a point may be among them. count: how many they are; 0 for a zero. head: their
 * value, if they are at most HEAD_DIGITS. is_plain: there is no point and no exponent. */
typedef struct {
    const uint8_t *first;
    int64_t count, exponent;
    uint64_t head;
    int is_negative, is_plain;
} Number;

enum { HEAD_DIGITS = 18 };

/* A floating-point format: m * 2^e with m < 2^precision and lowest <= e <= highest. Numbers of `safe` digits survive. */
typedef struct {
    int precision, lowest, highest, safe_digits, most_digits;
} Format;

extern const Format DOUBLE_FORMAT, FLOAT_FORMAT;

/* text: a number of JSON. */
Number split_number(const uint8_t *text, const uint8_t *end);

/* Each returns whether the value is held exactly. A fraction or exponent is held if it is the shortest text of the result. */
int to_integer(const Number *number, int bits, int64_t *to);
int to_float(const Number *number, const Format *format, double *to);
int to_decimal(const Number *number, int precision, int scale, uint8_t to[16]);

/* What a text is: no time, a time with digits other than 0 below a microsecond, or a time. */
typedef enum { NOT_FOUND, NOT_EXACT, FOUND_EXACTLY } Found;

/* Times in microseconds, days since 1970. `unit_digits` of a number are a fraction of its unit. */
int to_time(const Number *number, int unit_digits, int64_t *to);
int to_day(const Number *number, int unit_digits, int32_t *to);
Found read_time(const uint8_t *text, const uint8_t *end, int64_t *to);
int read_day(const uint8_t *text, const uint8_t *end, int32_t *to);

/* Decode base64 in its one canonical form; return the bytes, -1 if it is none. to: room for 3 bytes of each 4. */
int64_t read_base64(const uint8_t *text, int64_t length, uint8_t *to);

#endif
