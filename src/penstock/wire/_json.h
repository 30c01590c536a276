/* The syntax of JSON text, which all functions of the module share: there is one notion of JSON.
 *
 * A zero byte follows the last byte of text, and no JSON has that byte where it is read. So no place needs a look at the
 * length, but for words of eight bytes. */
#ifndef PENSTOCK_JSON_H
#define PENSTOCK_JSON_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* LEVELS: how deep text is read; more is as if it had one more. COMPONENTS, PATHS: of one path, and of one pass. */
enum { LEVELS = 1024, COMPONENTS = 32, PATHS = 16 };

/* A path in the table: how many components, then two numbers for each. A key: where its name lies, and its bytes. An
 * index: it, and INDEX; it is LAST for that of the last element. */
enum { ABOUT_PATH = 1 + 2 * COMPONENTS, INDEX = -1, LAST = -1 };

/* What is found of a path. AT: where the value begins, MISSING, or MISMATCH if something on the way is neither array nor
 * object as it should be, and then CONTAINER is where that begins. COUNT: members of the value, -1 of a scalar. FOUND:
 * components that are there. KEY_AT: where the member begins. CLOSE, MEMBERS: of the container that lacks the next one. */
enum { AT, END, COUNT, FOUND, CONTAINER, KEY_AT, CLOSE, MEMBERS, ABOUT_PLACE };
enum { MISSING = -1, MISMATCH = -2 };

typedef uint32_t Paths; /* a set of them, a bit each */

typedef struct {
    const uint8_t *text, *end;
    const int32_t *table;
    const uint8_t *names;
    int64_t places[PATHS][ABOUT_PLACE];
    Paths ends[COMPONENTS + 1], keyed[COMPONENTS + 1], last[COMPONENTS + 1]; /* by what stands at a depth of them */
    Py_ssize_t spare; /* bytes that may be read once more */
    int levels, most_levels, escaped;
} Scan;

/* Read a value in `depth` arrays and objects, and what paths lead to; return where it ends, NULL if it is none or too deep. */
const uint8_t *read_value(Scan *scan, const uint8_t *at, int depth, Paths paths);

static inline const uint8_t *skip(const uint8_t *at)
{
    while (*at <= ' ' && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t'))
        at++;
    return at;
}

/* Strings and numbers: each returns where what it reads ends, NULL if it is not well formed. */

static inline int digit(uint8_t byte)
{
    return (uint8_t)(byte - '0') < 10;
}

static inline const uint8_t *read_number(const uint8_t *at)
{
    at += *at == '-';
    if (!digit(*at))
        return NULL;
    if (*at++ != '0')
        while (digit(*at))
            at++;
    if (*at == '.') {
        if (!digit(*++at))
            return NULL;
        while (digit(*at))
            at++;
    }
    if ((*at | 0x20) == 'e') {
        at++;
        at += *at == '+' || *at == '-';
        if (!digit(*at))
            return NULL;
        while (digit(*at))
            at++;
    }
    return at;
}

static inline int hex(const uint8_t *at)
{
    int value = 0;
    for (int place = 0; place < 4; place++, at++) {
        const uint8_t letter = (uint8_t)((*at | 0x20) - 'a');
        if (digit(*at))
            value = value << 4 | (*at - '0');
        else if (letter < 6)
            value = value << 4 | (letter + 10);
        else
            return -1;
    }
    return value;
}

static inline const uint8_t *read_escape(const uint8_t *at)
{
    if (*at == 'u')
        return hex(at + 1) < 0 ? NULL : at + 5;
    return *at && strchr("\"\\/bfnrt", *at) ? at + 1 : NULL;
}

static inline int follows(uint8_t byte)
{
    return (byte & 0xC0) == 0x80;
}

/* Source: The Unicode Standard, table 3-7. */
static inline const uint8_t *read_utf8(const uint8_t *at)
{
    const uint8_t first = at[0], second = at[1];
    if (first < 0xC2)
        return NULL;
    if (first < 0xE0)
        return follows(second) ? at + 2 : NULL;
    if (first < 0xF0) {
        if (second < (first == 0xE0 ? 0xA0 : 0x80) || second > (first == 0xED ? 0x9F : 0xBF))
            return NULL;
        return follows(at[2]) ? at + 3 : NULL;
    }
    if (first > 0xF4 || second < (first == 0xF0 ? 0x90 : 0x80) || second > (first == 0xF4 ? 0x8F : 0xBF))
        return NULL;
    return follows(at[2]) && follows(at[3]) ? at + 4 : NULL;
}

/* Return how many of eight bytes stand in front of a quote, a backslash, a control character or one that is not ASCII. */
static inline int count_plain(const uint8_t *at)
{
    const uint64_t ones = 0x0101010101010101u, highs = 0x8080808080808080u;
    uint64_t word;
    memcpy(&word, at, 8);
    const uint64_t quote = word ^ ones * '"', backslash = word ^ ones * '\\';
    const uint64_t found = (word | (word - ones * 0x20) | (quote - ones) | (backslash - ones)) & highs;
    if (!found)
        return 8;
#if defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return __builtin_ctzll(found) >> 3; /* a borrow makes a mark behind a true one only */
#else
    return 0;
#endif
}

/* at: behind the quote that opens it. */
static inline const uint8_t *read_string(Scan *scan, const uint8_t *at)
{
    for (;;) {
        if (scan->end - at >= 8) {
            const int plain = count_plain(at);
            at += plain;
            if (plain == 8)
                continue;
        }
        while (*at >= 0x80)
            if (!(at = read_utf8(at)))
                return NULL;
        if (*at == '"')
            return at + 1;
        if (*at < 0x20)
            return NULL;
        if (*at++ == '\\') {
            scan->escaped = 1;
            if (!(at = read_escape(at)))
                return NULL;
        }
    }
}

/* Strings that were read */

static inline int put_utf8(uint32_t point, uint8_t *to)
{
    if (point < 0x80) {
        to[0] = (uint8_t)point;
        return 1;
    }
    const int more = point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
    for (int place = more; place; place--, point >>= 6)
        to[place] = (uint8_t)(0x80 | (point & 0x3F));
    to[0] = (uint8_t)((0xF0 << (3 - more) & 0xFF) | point);
    return more + 1;
}

/* Read what an escape of a checked string means, as UTF-8; return where it ends. at: behind the backslash. */
static inline const uint8_t *unescape(const uint8_t *at, uint8_t *to, int *bytes)
{
    static const char letters[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    if (*at != 'u') {
        to[0] = (uint8_t)meant[strchr(letters, *at) - letters];
        *bytes = 1;
        return at + 1;
    }
    uint32_t point = (uint32_t)hex(at + 1);
    at += 5;
    if (point >= 0xD800 && point < 0xDC00 && at[0] == '\\' && at[1] == 'u') {
        const uint32_t low = (uint32_t)hex(at + 2);
        if (low >= 0xDC00 && low < 0xE000) {
            point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00);
            at += 6;
        }
    }
    *bytes = put_utf8(point, to); /* of half a pair: what no name has */
    return at;
}

static inline int is_spelled(const uint8_t *key, const uint8_t *end, const uint8_t *name, Py_ssize_t length)
{
    uint8_t meant[4];
    while (key < end) {
        int bytes = 1;
        if (*key == '\\')
            key = unescape(key + 1, meant, &bytes);
        else
            meant[0] = *key++;
        if (length < bytes || memcmp(name, meant, (size_t)bytes))
            return 0;
        name += bytes;
        length -= bytes;
    }
    return !length;
}

#endif
