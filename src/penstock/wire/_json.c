/* JSON text in one pass: whether it is some, how deep it is, and where up to 16 paths lead. No object is made of it.
 *
 * Text is read as bytes of a bytes object, which ends with a zero byte. What is found does not depend on this module:
 * penstock.store.subdoc.text does the same in Python. Every function here works without the GIL. */
#include "_json.h"

PyObject *locate(PyObject *self, PyObject *args);
PyObject *find_item(PyObject *self, PyObject *args);

#define EACH(path, set) for (int path = 0; (set) >> path; path++) if ((set) >> path & 1)

static inline const int32_t *component(const Scan *scan, int path, int depth)
{
    return scan->table + path * ABOUT_PATH + 1 + 2 * depth;
}

/* Keys */

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

const uint8_t *read_value(Scan *scan, const uint8_t *at, int depth, Paths paths)
{
    const Paths into = paths ? arrive(scan, at, depth, paths) : 0;
    int64_t count = -1;
    switch (*at) {
    case '{':
    case '[':
        if (depth >= scan->levels) {
            scan->levels = depth + 1;
            if (depth >= scan->most_levels)
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
    Scan scan = {.most_levels = LEVELS};
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
    Scan scan = {.most_levels = LEVELS};
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
