/* JSON text in one pass: whether it is some, how deep it is, and where up to 16 paths lead. No object is made of it.
 *
 * Text is read as bytes of a bytes object: a zero byte follows the last one, and no JSON has that byte where it is read.
 * So no place needs a look at the length, but for words of eight bytes. What is found does not depend on this module:
 * penstock.store.subdoc.text does the same in Python. Every function here works without the GIL. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

PyObject *locate(PyObject *self, PyObject *args);
PyObject *find_item(PyObject *self, PyObject *args);

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
    int levels, escaped;
} Scan;

#define EACH(path, set) for (int path = 0; (set) >> path; path++) if ((set) >> path & 1)

static const uint8_t *read_value(Scan *scan, const uint8_t *at, int depth, Paths paths);

static inline const int32_t *component(const Scan *scan, int path, int depth)
{
    return scan->table + path * ABOUT_PATH + 1 + 2 * depth;
}

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

static const uint8_t *read_number(const uint8_t *at)
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

static int hex(const uint8_t *at)
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

static const uint8_t *read_escape(const uint8_t *at)
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
static const uint8_t *read_utf8(const uint8_t *at)
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
static const uint8_t *read_string(Scan *scan, const uint8_t *at)
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

/* Keys */

static int put_utf8(uint32_t point, uint8_t *to)
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
static const uint8_t *unescape(const uint8_t *at, uint8_t *to, int *bytes)
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

static int is_spelled(const uint8_t *key, const uint8_t *end, const uint8_t *name, Py_ssize_t length)
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

/* A bit of 64 for a key that has no escapes. */
static inline uint64_t mark(const uint8_t *key, Py_ssize_t length)
{
    const unsigned last = length ? key[length - 1] : 0, other = length > 1 ? key[length - 2] : 0;
    return (uint64_t)1 << ((last + 5 * other + 7 * (unsigned)length) & 63);
}

static uint64_t marks_of(const Scan *scan, int depth, Paths paths)
{
    uint64_t marks = 0;
    EACH(path, paths) {
        const int32_t *name = component(scan, path, depth);
        marks |= mark(scan->names + name[0], name[1]);
    }
    return marks;
}

static Paths named(const Scan *scan, const uint8_t *key, const uint8_t *end, int depth, Paths paths)
{
    Paths hit = 0;
    EACH(path, paths) {
        const int32_t *about = component(scan, path, depth);
        const uint8_t *name = scan->names + about[0];
        const int same = scan->escaped ? is_spelled(key, end, name, about[1])
                                       : end - key == about[1] && !memcmp(key, name, (size_t)about[1]);
        hit |= (Paths)same << path;
    }
    return hit;
}

/* Arrays and objects */

static inline void enter(Scan *scan, Paths paths, const uint8_t *container, const uint8_t *key_at)
{
    EACH(path, paths) {
        scan->places[path][CONTAINER] = container - scan->text;
        scan->places[path][KEY_AT] = key_at - scan->text;
    }
}

static inline void leave(Scan *scan, Paths paths, const uint8_t *close, int64_t members)
{
    EACH(path, paths) {
        scan->places[path][CLOSE] = close - scan->text;
        scan->places[path][MEMBERS] = members;
    }
}

/* Note that paths have come to a value, and return those that lead into it. */
static Paths arrive(Scan *scan, const uint8_t *at, int depth, Paths paths)
{
    const Paths more = paths & ~scan->ends[depth];
    const Paths into = *at == '{' ? more & scan->keyed[depth] : *at == '[' ? more & ~scan->keyed[depth] : 0;
    EACH(path, paths) {
        int64_t *place = scan->places[path];
        const int is_end = scan->ends[depth] >> path & 1;
        place[AT] = is_end ? at - scan->text : into >> path & 1 ? MISSING : MISMATCH;
        place[FOUND] = depth;
        place[END] = place[COUNT] = place[CLOSE] = -1;
        place[MEMBERS] = 0;
        if (!is_end) {
            place[CONTAINER] = at - scan->text;
            place[KEY_AT] = -1;
        }
    }
    return into;
}

static void finish(Scan *scan, const uint8_t *end, int64_t count, Paths paths)
{
    EACH(path, paths) {
        scan->places[path][END] = end - scan->text;
        scan->places[path][COUNT] = count;
    }
}

/* depth: of the members. into: paths that lead to members. */
static const uint8_t *read_object(Scan *scan, const uint8_t *open, int depth, Paths into, int64_t *count)
{
    const uint64_t marks = into ? marks_of(scan, depth - 1, into) : 0;
    const uint8_t *at = skip(open + 1);
    int64_t members = 0;
    while (*at != '}' || members) {
        const uint8_t *key_at = at;
        if (*at != '"')
            return NULL;
        scan->escaped = 0;
        if (!(at = read_string(scan, at + 1)))
            return NULL;
        Paths hit = 0;
        if (into && (scan->escaped || marks & mark(key_at + 1, at - key_at - 2))) {
            hit = named(scan, key_at + 1, at - 1, depth - 1, into);
            enter(scan, hit, open, key_at);
            into &= ~hit; /* of keys that stand there twice the first counts */
        }
        if (*at != ':' && *(at = skip(at)) != ':')
            return NULL;
        if (!(at = read_value(scan, skip(at + 1), depth, hit)))
            return NULL;
        members++;
        if (*(at = skip(at)) == '}')
            break;
        if (*at != ',')
            return NULL;
        at = skip(at + 1);
    }
    leave(scan, into, at, members);
    *count = members;
    return at + 1;
}

static int64_t lowest(const Scan *scan, int depth, Paths paths)
{
    int64_t index = INT64_MAX;
    EACH(path, paths) {
        const int64_t wanted = component(scan, path, depth)[0];
        index = wanted < index ? wanted : index;
    }
    return index;
}

static Paths indexed(const Scan *scan, int64_t index, int depth, Paths paths)
{
    Paths hit = 0;
    EACH(path, paths)
        hit |= (Paths)(component(scan, path, depth)[0] == index) << path;
    return hit;
}

/* As read_object. Which element is the last shows at the end: it is then read once more, for the paths that lead into it.
 * Where that would be too much in all, each element is read as if it were the last. */
static const uint8_t *read_array(Scan *scan, const uint8_t *open, int depth, Paths into, int64_t *count)
{
    const Paths last = into ? into & scan->last[depth - 1] : 0; /* deeper text has no paths */
    const uint8_t *at = skip(open + 1), *begin = NULL, *end = NULL;
    int64_t members = 0, next;
    Paths hit = 0;
    into &= ~last;
    next = lowest(scan, depth - 1, into);
    while (*at != ']' || members) {
        hit = 0;
        if (members == next) {
            hit = indexed(scan, members, depth - 1, into);
            into &= ~hit;
            next = lowest(scan, depth - 1, into);
        }
        if (last && scan->spare <= 0)
            hit |= last;
        begin = at;
        enter(scan, hit, open, begin);
        if (!(end = at = read_value(scan, at, depth, hit)))
            return NULL;
        members++;
        if (*(at = skip(at)) == ']')
            break;
        if (*at != ',')
            return NULL;
        at = skip(at + 1);
    }
    if (members && last & ~hit) {
        scan->spare -= end - begin;
        enter(scan, last, open, begin);
        read_value(scan, begin, depth, last);
    }
    leave(scan, members ? into : into | last, at, members);
    *count = members;
    return at + 1;
}

static const uint8_t *read_value(Scan *scan, const uint8_t *at, int depth, Paths paths)
{
    const Paths into = paths ? arrive(scan, at, depth, paths) : 0;
    int64_t count = -1;
    switch (*at) {
    case '{':
    case '[':
        if (depth >= scan->levels) {
            scan->levels = depth + 1;
            if (depth >= LEVELS)
                return NULL;
        }
        at = *at == '{' ? read_object(scan, at, depth + 1, into, &count) : read_array(scan, at, depth + 1, into, &count);
        break;
    case '"':
        at = read_string(scan, at + 1);
        break;
    case 't':
        at = strncmp((const char *)at, "true", 4) ? NULL : at + 4;
        break;
    case 'f':
        at = strncmp((const char *)at, "false", 5) ? NULL : at + 5;
        break;
    case 'n':
        at = strncmp((const char *)at, "null", 4) ? NULL : at + 4;
        break;
    default:
        at = read_number(at);
    }
    if (at && paths)
        finish(scan, at, count, paths & scan->ends[depth]);
    return at;
}

static int take_table(Scan *scan, const int32_t *table, Py_ssize_t count, Py_ssize_t name_bytes)
{
    for (Py_ssize_t path = 0; path < count; path++) {
        const int32_t *about = table + path * ABOUT_PATH;
        const int32_t length = about[0];
        if (length < 0 || length > COMPONENTS)
            return 0;
        scan->ends[length] |= (Paths)1 << path;
        for (int depth = 0; depth < length; depth++) {
            const int32_t at = about[1 + 2 * depth], bytes = about[2 + 2 * depth];
            if (bytes == INDEX ? at < LAST : at < 0 || bytes < 0 || at > name_bytes - bytes)
                return 0;
            scan->keyed[depth] |= (Paths)(bytes != INDEX) << path;
            scan->last[depth] |= (Paths)(bytes == INDEX && at == LAST) << path;
        }
    }
    scan->table = table;
    return 1;
}

static PyObject *shown(const Scan *scan, int is_json, Py_ssize_t count)
{
    if (!is_json && scan->levels <= LEVELS)
        return Py_BuildValue("i()", -1);
    PyObject *places = PyTuple_New(is_json ? count : 0);
    for (Py_ssize_t path = 0; is_json && places && path < count; path++) {
        const int64_t *place = scan->places[path];
        PyObject *each = Py_BuildValue("LLLLLLLL", (long long)place[AT], (long long)place[END], (long long)place[COUNT],
            (long long)place[FOUND], (long long)place[CONTAINER], (long long)place[KEY_AT], (long long)place[CLOSE],
            (long long)place[MEMBERS]);
        if (!each || PyTuple_SetItem(places, path, each))
            Py_CLEAR(places);
    }
    return places ? Py_BuildValue("iN", scan->levels, places) : NULL;
}

/* locate(text, table, names) -> (levels, places)
 *
 * table: ABOUT_PATH numbers, int32, for each path. names: of its keys, as UTF-8. levels: of arrays and objects in one
 * another; -1 if it is no JSON text, LEVELS + 1 if there are more than LEVELS, whatever follows. places: of each path. */
PyObject *locate(PyObject *Py_UNUSED(self), PyObject *args)
{
    PyObject *text;
    Py_buffer in[2];
    Scan scan = {0};
    char *bytes;
    Py_ssize_t length;
    if (!PyArg_ParseTuple(args, "Sy*y*", &text, &in[0], &in[1]))
        return NULL;
    const Py_ssize_t count = in[0].len / (Py_ssize_t)(ABOUT_PATH * sizeof(int32_t));
    int is_json = 0, sound = count <= PATHS && PyBytes_AsStringAndSize(text, &bytes, &length) == 0
        && take_table(&scan, in[0].buf, count, in[1].len);
    if (sound) {
        scan.text = (const uint8_t *)bytes;
        scan.end = scan.text + length;
        scan.spare = length;
        scan.names = in[1].buf;
        Py_BEGIN_ALLOW_THREADS
        memset(scan.places, 0xFF, sizeof scan.places);
        const uint8_t *end = read_value(&scan, skip(scan.text), 0, ((Paths)1 << count) - 1);
        is_json = end && skip(end) == scan.end;
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&in[0]);
    PyBuffer_Release(&in[1]);
    if (!sound && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "a table of paths that is none");
    return sound ? shown(&scan, is_json, count) : NULL;
}

/* find_item(text, at, item) -> where in the array at `at` the first element begins that is spelled as the item is, or is
 * an array or object; -1 if there is none. text: one that `locate` has checked. */
PyObject *find_item(PyObject *Py_UNUSED(self), PyObject *args)
{
    PyObject *text;
    Py_buffer item;
    Scan scan = {0};
    char *bytes;
    Py_ssize_t start, length, found = -1;
    if (!PyArg_ParseTuple(args, "Sny*", &text, &start, &item))
        return NULL;
    int sound = PyBytes_AsStringAndSize(text, &bytes, &length) == 0 && 0 <= start && start < length && bytes[start] == '[';
    if (sound) {
        scan.text = (const uint8_t *)bytes;
        scan.end = scan.text + length;
        Py_BEGIN_ALLOW_THREADS
        const uint8_t *at = skip(scan.text + start + 1);
        while (*at != ']' && found < 0) {
            const uint8_t *end = *at == '[' || *at == '{' ? at : read_value(&scan, at, 0, 0);
            if (!end) {
                sound = 0;
                break;
            }
            if (end == at || (end - at == item.len && !memcmp(at, item.buf, (size_t)item.len)))
                found = at - scan.text;
            at = skip(end);
            if (*at == ',')
                at = skip(at + 1);
        }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&item);
    if (!sound && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "no array in checked text");
    return sound ? PyLong_FromSsize_t(found) : NULL;
}
