/* Numbers, times and base64 in JSON text as the values of columns; see _values.h. json_rows does the same in Python. */
#include "_values.h"

#include <float.h>
#include <math.h>
#include <string.h>

const Format DOUBLE_FORMAT = {53, -1074, 971, 15, 17}, FLOAT_FORMAT = {24, -149, 104, 6, 9};

static inline int is_digit(uint8_t byte)
{
    return (uint8_t)(byte - '0') < 10;
}

/* Numbers of any length, as far as values need them: LIMBS hold 10^342 times a number of 64 bits. */

enum { LIMBS = 48, FIVES = 13 };

typedef struct {
    int count;
    uint32_t limbs[LIMBS];
} Big;

static const uint32_t powers_of_5[FIVES + 1] = {1, 5, 25, 125, 625, 3125, 15625, 78125, 390625, 1953125, 9765625,
    48828125, 244140625, 1220703125};

static const uint64_t powers_of_10[HEAD_DIGITS + 1] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000,
    1000000000, 10000000000, 100000000000, 1000000000000, 10000000000000, 100000000000000, 1000000000000000,
    10000000000000000, 100000000000000000, 1000000000000000000};

static Big make_big(uint64_t value)
{
    Big big;
    big.count = value >> 32 ? 2 : value ? 1 : 0;
    big.limbs[0] = (uint32_t)value;
    big.limbs[1] = (uint32_t)(value >> 32);
    return big;
}

/* Multiply and add. The callers keep within LIMBS. */
static void scale_big(Big *big, uint32_t factor, uint32_t more)
{
    uint64_t carry = more;
    for (int at = 0; at < big->count; at++) {
        carry += (uint64_t)big->limbs[at] * factor;
        big->limbs[at] = (uint32_t)carry;
        carry >>= 32;
    }
    if (carry)
        big->limbs[big->count++] = (uint32_t)carry;
}

static void scale_by_fives(Big *big, int power)
{
    for (; power > FIVES; power -= FIVES)
        scale_big(big, powers_of_5[FIVES], 0);
    scale_big(big, powers_of_5[power], 0);
}

static void shift_big(Big *big, int bits)
{
    const int whole = bits / 32, rest = bits % 32;
    if (rest)
        scale_big(big, (uint32_t)1 << rest, 0);
    if (whole && big->count) {
        memmove(big->limbs + whole, big->limbs, (size_t)big->count * sizeof big->limbs[0]);
        memset(big->limbs, 0, (size_t)whole * sizeof big->limbs[0]);
        big->count += whole;
    }
}

static int compare_bigs(const Big *a, const Big *b)
{
    if (a->count != b->count)
        return a->count < b->count ? -1 : 1;
    for (int at = a->count - 1; at >= 0; at--)
        if (a->limbs[at] != b->limbs[at])
            return a->limbs[at] < b->limbs[at] ? -1 : 1;
    return 0;
}

/* Compare a * 10^ten with b * 2^two. */
static int compare_powers(uint64_t a, int ten, uint64_t b, int two)
{
    Big left = make_big(a), right = make_big(b);
    scale_by_fives(ten > 0 ? &left : &right, ten > 0 ? ten : -ten);
    if (two > ten)
        shift_big(&right, two - ten);
    else
        shift_big(&left, ten - two);
    return compare_bigs(&left, &right);
}

Number split_number(const uint8_t *text, const uint8_t *end)
{
    Number found = {.is_negative = *text == '-', .is_plain = 1};
    int64_t zeros = 0, places = 0;
    const uint8_t *at = text + found.is_negative;
    for (; at < end && (*at | 0x20) != 'e'; at++) {
        if (*at == '.') {
            found.is_plain = 0;
            continue;
        }
        places += !found.is_plain;
        if (*at == '0') {
            zeros += found.count > 0;
            continue;
        }
        if (!found.count)
            found.first = at;
        found.count += zeros + 1;
        if (found.count <= HEAD_DIGITS)
            found.head = found.head * powers_of_10[zeros + 1] + (uint64_t)(*at - '0');
        zeros = 0;
    }
    found.exponent = zeros - places;
    if (at < end) {
        const int is_negative = *++at == '-';
        int64_t power = 0;
        found.is_plain = 0;
        for (at += *at == '-' || *at == '+'; at < end; at++)
            if (power < (int64_t)1 << 50)
                power = 10 * power + (*at - '0');
        found.exponent += is_negative ? -power : power;
    }
    if (!found.count)
        found.exponent = 0;
    return found;
}

/* Return digits * 10^power. It has at most 309 digits. */
static Big read_big(const Number *number, int64_t power)
{
    Big big = make_big(0);
    const uint8_t *at = number->first;
    for (int64_t digits = 0; digits < number->count; at++)
        if (*at != '.') {
            scale_big(&big, 10, (uint32_t)(*at - '0'));
            digits++;
        }
    for (; power > 0; power--)
        scale_big(&big, 10, 0);
    return big;
}

int to_integer(const Number *number, int bits, int64_t *to)
{
    const uint64_t most = ((uint64_t)1 << (bits - 1)) - !number->is_negative;
    uint64_t value;
    if (!number->is_plain || number->count + number->exponent > 19)
        return 0;
    if (number->count + number->exponent <= HEAD_DIGITS)
        value = number->head * powers_of_10[number->exponent];
    else {
        const Big big = read_big(number, number->exponent);
        value = (uint64_t)big.limbs[1] << 32 | big.limbs[0]; /* of 19 digits */
    }
    if (value > most)
        return 0;
    *to = number->is_negative ? (int64_t)(0 - value) : (int64_t)value;
    return 1;
}

/* m * 2^e in a format, with as many bits as it may have. */
typedef struct {
    uint64_t m;
    int e;
} Float;

static Float step_up(Float value, const Format *format)
{
    if (++value.m >> format->precision) {
        value.m >>= 1;
        value.e++;
    }
    return value;
}

static Float step_down(Float value, const Format *format)
{
    value.m--;
    if (value.e > format->lowest && !(value.m >> (format->precision - 1))) {
        value.m = ((uint64_t)1 << format->precision) - 1;
        value.e--;
    }
    return value;
}

/* Return 0 if a decimal is rounded to a float, else -1 or 1: where it lies. */
static int place_decimal(uint64_t digits, int ten, Float value, const Format *format)
{
    const int is_odd = value.m & 1;
    const int above = compare_powers(digits, ten, 2 * value.m + 1, value.e - 1);
    if (above > 0 || (!above && is_odd))
        return 1;
    if (!value.m)
        return 0;
    const int is_power = value.m == (uint64_t)1 << (format->precision - 1) && value.e > format->lowest;
    const int below = is_power ? compare_powers(digits, ten, 4 * value.m - 1, value.e - 2)
                               : compare_powers(digits, ten, 2 * value.m - 1, value.e - 1);
    return below < 0 || (!below && is_odd) ? -1 : 0;
}

static const double exact_powers[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14,
    1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
enum { EXACT_POWER = 22 };

static double guess_double(uint64_t digits, int ten)
{
    double value = (double)digits;
    for (; ten > EXACT_POWER; ten -= EXACT_POWER)
        value *= exact_powers[EXACT_POWER];
    for (; ten < -EXACT_POWER; ten += EXACT_POWER)
        value /= exact_powers[EXACT_POWER];
    return ten < 0 ? value / exact_powers[-ten] : value * exact_powers[ten];
}

static Float split_float(double value, const Format *format)
{
    const Float most = {((uint64_t)1 << format->precision) - 1, format->highest};
    if (value > ldexp((double)most.m, most.e))
        return most;
    int e;
    frexp(value, &e);
    e = value > 0 && e - format->precision > format->lowest ? e - format->precision : format->lowest;
    const Float found = {(uint64_t)ldexp(value, -e), e};
    return found;
}

/* Return whether no text with fewer digits, nor a nearer one with as many, is rounded to the same float. */
static int is_shortest(uint64_t digits, int count, int ten, Float value, const Format *format)
{
    if (count > 1 && (!place_decimal(digits / 10, ten + 1, value, format)
            || !place_decimal(digits / 10 + 1, ten + 1, value, format)))
        return 0;
    const int below = compare_powers(2 * digits - 1, ten, value.m, value.e + 1);
    if (below > 0 || (!below && digits & 1))
        return place_decimal(digits - 1, ten, value, format) != 0;
    const int above = compare_powers(2 * digits + 1, ten, value.m, value.e + 1);
    return (above > 0 || (!above && !(digits & 1))) || place_decimal(digits + 1, ten, value, format) != 0;
}

static int round_shortest(const Number *number, const Format *format, double *to)
{
    const int64_t count = number->count, leading = count + number->exponent;
    if (count > format->most_digits || leading > 310 || leading < -330)
        return 0;
    const int ten = (int)number->exponent;
    const int is_exact = FLT_EVAL_METHOD == 0 && format == &DOUBLE_FORMAT && number->head <= (uint64_t)1 << 53
        && -EXACT_POWER <= ten && ten <= EXACT_POWER;
    *to = guess_double(number->head, ten);
    if (is_exact && count <= format->safe_digits)
        return 1;
    Float value = split_float(*to, format);
    const uint64_t least = (uint64_t)1 << (format->precision - 1);
    for (int side; !is_exact && (side = place_decimal(number->head, ten, value, format));) {
        value = side > 0 ? step_up(value, format) : step_down(value, format);
        if (value.e > format->highest)
            return 0;
    }
    if (!value.m)
        return 0;
    *to = ldexp((double)value.m, value.e);
    return (count <= format->safe_digits && value.m >= least)
        || is_shortest(number->head, (int)count, ten, value, format);
}

/* Keep an integer that the format holds exactly. */
static int hold_integer(const Number *number, const Format *format, double *to)
{
    const int64_t digits = number->count + number->exponent;
    if (digits <= HEAD_DIGITS) {
        uint64_t odd = number->head * powers_of_10[number->exponent];
        *to = (double)odd;
        while (!(odd & 1))
            odd >>= 1;
        return !(odd >> format->precision);
    }
    if (digits > 309)
        return 0;
    const Big big = read_big(number, number->exponent);
    int low = 0, high = 32 * big.count - 1;
    while (!(big.limbs[low / 32] >> low % 32 & 1))
        low++;
    while (!(big.limbs[high / 32] >> high % 32 & 1))
        high--;
    if (high - low >= format->precision || high >= format->highest + format->precision)
        return 0;
    *to = 0;
    for (int bit = low; bit <= high; bit++)
        if (big.limbs[bit / 32] >> bit % 32 & 1)
            *to += ldexp(1, bit);
    return 1;
}

int to_float(const Number *number, const Format *format, double *to)
{
    *to = 0;
    if (number->count) {
        const int fits = number->is_plain ? hold_integer(number, format, to) : round_shortest(number, format, to);
        if (!fits)
            return 0;
    }
    if (number->is_negative && (number->count || !number->is_plain))
        *to = -*to;
    return 1;
}

int to_decimal(const Number *number, int precision, int scale, uint8_t to[16])
{
    uint32_t limbs[4] = {0};
    if (number->count) {
        const int64_t power = number->exponent + scale;
        if (power < 0 || number->count + power > precision)
            return 0;
        const Big big = number->count + power <= HEAD_DIGITS ? make_big(number->head * powers_of_10[power])
                                                             : read_big(number, power);
        memcpy(limbs, big.limbs, (size_t)big.count * sizeof limbs[0]); /* 38 digits are 127 bits */
    }
    uint64_t carry = number->is_negative;
    for (int at = 0; at < 4; at++) {
        carry += number->is_negative ? ~limbs[at] : limbs[at];
        limbs[at] = (uint32_t)carry;
        carry >>= 32;
    }
    const uint64_t low = (uint64_t)limbs[1] << 32 | limbs[0], high = (uint64_t)limbs[3] << 32 | limbs[2];
    const union {
        uint16_t number;
        uint8_t bytes[2];
    } order = {1}; /* of Arrow's own bytes: those of the machine */
    memcpy(to, order.bytes[0] ? &low : &high, 8);
    memcpy(to + 8, order.bytes[0] ? &high : &low, 8);
    return 1;
}

/* Times */

enum { MOST_OFFSET_MINUTES = 18 * 60 };

static const int64_t DAY_MICROSECONDS = INT64_C(86400000000);
static const int64_t FIRST_TIME = INT64_C(-62135596800000000), LAST_TIME = INT64_C(253402300799999999); /* 1 to 9999 */

typedef struct {
    const uint8_t *at, *end;
    int is_wrong, is_inexact;
} Text;

/* Read exactly `count` digits. */
static int take_digits(Text *text, int count)
{
    int value = 0;
    for (; count && text->at < text->end && is_digit(*text->at); count--)
        value = 10 * value + (*text->at++ - '0');
    text->is_wrong |= count > 0;
    return value;
}

static int take_byte(Text *text, const char *wanted)
{
    if (text->at < text->end && *text->at && strchr(wanted, *text->at))
        return *text->at++;
    return 0;
}

static void expect_byte(Text *text, const char *wanted)
{
    text->is_wrong |= !take_byte(text, wanted);
}

/* Read a word of three letters in any case; return its place among words of three, -1 for none. */
static int take_word(Text *text, const char *words)
{
    if (text->end - text->at < 3)
        return -1;
    for (int place = 0; words[3 * place]; place++)
        if (!((text->at[0] ^ words[3 * place]) & ~0x20) && !((text->at[1] ^ words[3 * place + 1]) & ~0x20)
            && !((text->at[2] ^ words[3 * place + 2]) & ~0x20)) {
            text->at += 3;
            return place;
        }
    return -1;
}

/* Return the days since 1970 of a date in the Gregorian calendar; mark the text as wrong if there is no such date. */
static int64_t count_days(Text *text, int year, int month, int day)
{
    static const int before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365};
    const int is_leap = !(year % 4) && (year % 100 || !(year % 400));
    if (year < 1 || month < 1 || month > 12 || day < 1
        || day > before[month] - before[month - 1] + (month == 2 && is_leap)) {
        text->is_wrong = 1;
        return 0;
    }
    const int past = year - 1;
    return (int64_t)365 * past + past / 4 - past / 100 + past / 400 + before[month - 1] + (month > 2 && is_leap) + day - 1
        - 719162;
}

/* Read hours, minutes and perhaps seconds, with colons or without; return microseconds. */
static int64_t take_clock(Text *text, int has_colons, int has_fraction)
{
    const int hour = take_digits(text, 2);
    if (has_colons)
        expect_byte(text, ":");
    const int minute = take_digits(text, 2);
    int second = 0;
    int64_t fraction = 0;
    if (has_colons ? take_byte(text, ":") : text->at < text->end && is_digit(*text->at)) {
        second = take_digits(text, 2);
        if (has_fraction && take_byte(text, ".,")) {
            text->is_wrong |= text->at == text->end || !is_digit(*text->at);
            int64_t unit = 100000;
            for (; text->at < text->end && is_digit(*text->at); text->at++, unit /= 10) {
                fraction += unit * (*text->at - '0');
                text->is_inexact |= !unit && *text->at != '0';
            }
        }
    }
    text->is_wrong |= hour > 23 || minute > 59 || second > 59;
    return ((int64_t)hour * 3600 + minute * 60 + second) * 1000000 + fraction;
}

/* Read `+hh`, `+hhmm` or `+hh:mm`; return microseconds. */
static int64_t take_offset(Text *text, int sign)
{
    const int hours = take_digits(text, 2);
    int minutes = 0;
    if (take_byte(text, ":") || (text->at < text->end && is_digit(*text->at)))
        minutes = take_digits(text, 2);
    text->is_wrong |= !sign || minutes > 59 || 60 * hours + minutes > MOST_OFFSET_MINUTES;
    return (int64_t)(sign == '-' ? -1 : 1) * (60 * hours + minutes) * 60000000;
}

static int64_t take_iso(Text *text)
{
    const int year = take_digits(text, 4), is_extended = take_byte(text, "-") != 0;
    const int month = take_digits(text, 2);
    if (is_extended)
        expect_byte(text, "-");
    const int day = take_digits(text, 2);
    int64_t time = count_days(text, year, month, day) * DAY_MICROSECONDS;
    if (text->at == text->end)
        return time;
    expect_byte(text, is_extended ? "Tt " : "Tt");
    time += take_clock(text, is_extended, 1);
    if (!take_byte(text, "Zz") && text->at < text->end)
        time -= take_offset(text, take_byte(text, "+-"));
    return time;
}

/* `Sat, 28 Nov 2026 09:30:00 GMT`, the form of RFC 1123. */
static int64_t take_rfc1123(Text *text)
{
    const int weekday = take_word(text, "MonTueWedThuFriSatSun");
    if (weekday >= 0) {
        expect_byte(text, ",");
        expect_byte(text, " ");
    }
    const int is_long = text->end - text->at > 1 && is_digit(text->at[1]);
    const int day = take_digits(text, 1 + is_long);
    expect_byte(text, " ");
    const int month = 1 + take_word(text, "JanFebMarAprMayJunJulAugSepOctNovDec");
    expect_byte(text, " ");
    const int year = take_digits(text, 4);
    expect_byte(text, " ");
    const int64_t days = count_days(text, year, month, day);
    text->is_wrong |= weekday >= 0 && (days + 719162) % 7 != weekday; /* the first day of year 1 is a Monday */
    const int64_t time = days * DAY_MICROSECONDS + take_clock(text, 1, 0);
    expect_byte(text, " ");
    if (take_word(text, "GMTUTC") >= 0)
        return time;
    const int sign = take_byte(text, "+-");
    text->is_wrong |= text->end - text->at != 4;
    return time - take_offset(text, sign);
}

Found read_time(const uint8_t *at, const uint8_t *end, int64_t *to)
{
    Text text = {at, end, 0, 0};
    const int is_iso = end - at >= 4 && is_digit(at[0]) && is_digit(at[1]) && is_digit(at[2]);
    *to = is_iso ? take_iso(&text) : take_rfc1123(&text);
    if (text.is_wrong || text.at != end || *to < FIRST_TIME || *to > LAST_TIME)
        return NOT_FOUND;
    return text.is_inexact ? NOT_EXACT : FOUND_EXACTLY;
}

int read_day(const uint8_t *at, const uint8_t *end, int32_t *to)
{
    int64_t time;
    if (end - at != (end - at > 4 && at[4] == '-' ? 10 : 8) || read_time(at, end, &time) != FOUND_EXACTLY)
        return 0;
    *to = (int32_t)(time / DAY_MICROSECONDS - (time % DAY_MICROSECONDS < 0));
    return 1;
}

int to_time(const Number *number, int unit_digits, int64_t *to)
{
    const int64_t power = number->exponent + unit_digits;
    *to = 0;
    if (!number->count)
        return 1;
    if (power < 0 || number->count + power > HEAD_DIGITS)
        return 0;
    *to = (int64_t)(number->head * powers_of_10[power]) * (number->is_negative ? -1 : 1);
    return FIRST_TIME <= *to && *to <= LAST_TIME;
}

int to_day(const Number *number, int unit_digits, int32_t *to)
{
    int64_t time;
    if (!to_time(number, unit_digits, &time) || time % DAY_MICROSECONDS)
        return 0;
    *to = (int32_t)(time / DAY_MICROSECONDS);
    return 1;
}

/* Base64 */

static int read_sextet(uint8_t byte)
{
    if (byte >= 'A' && byte <= 'Z')
        return byte - 'A';
    if (byte >= 'a' && byte <= 'z')
        return byte - 'a' + 26;
    if (is_digit(byte))
        return byte - '0' + 52;
    return byte == '+' ? 62 : byte == '/' ? 63 : -1;
}

int64_t read_base64(const uint8_t *text, int64_t length, uint8_t *to)
{
    if (length % 4)
        return -1;
    int padding = 0;
    while (padding < 2 && padding < length && text[length - 1 - padding] == '=')
        padding++;
    uint32_t bits = 0;
    int64_t filled = 0;
    for (int64_t at = 0; at < length - padding; at++) {
        const int sextet = read_sextet(text[at]);
        if (sextet < 0)
            return -1;
        bits = bits << 6 | (uint32_t)sextet;
        if (at % 4)
            to[filled++] = (uint8_t)(bits >> (6 - 2 * (at % 4)));
    }
    return bits & ((1u << 2 * padding) - 1) ? -1 : filled;
}
