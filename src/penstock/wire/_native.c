/* The receiving path in one pass: hop over headers, numbers into columns, keys and values behind each other.
 *
 * No layout is known here. What lies where is said by tables that penstock.wire.codec.native makes of the declared messages;
 * they are believed. The bytes of a peer are not: whatever a buffer holds, nothing outside of one is read or written.
 * What is wrong with a bad frame is said in Python, which does all of this as well where this module was not built.
 * Every function takes buffers and works without the GIL. All but `join` return numbers. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* These are in _json.c: paths in JSON text. */
PyObject *locate(PyObject *self, PyObject *args);
PyObject *find_item(PyObject *self, PyObject *args);

/* This is in _documents.c: JSON documents as columns. */
PyObject *parse_documents(PyObject *self, PyObject *args);

enum { MARK_BYTES = 257, NO_FORM = 0xFF, SHORT = 32 };

static inline uint16_t load16(const uint8_t *at)
{
    return (uint16_t)(at[0] << 8 | at[1]);
}

static inline uint32_t load32(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static inline uint64_t load64(const uint8_t *at)
{
    return (uint64_t)load32(at) << 32 | load32(at + 4);
}

static void *release(Py_buffer *buffers, int count, int sound)
{
    for (int each = 0; each < count; each++)
        PyBuffer_Release(&buffers[each]);
    if (!sound)
        PyErr_SetString(PyExc_ValueError, "a place outside of its buffer");
    return NULL;
}

/* hop(buffer, start, end, header bytes, where the body's length is, marks, offsets, alone)
 *     -> (frames, those that stand alone, position)
 *
 * marks: each is where a byte lies in a frame, and 256 truths: may a frame with that byte stand in a run?
 * offsets, alone: int64, filled with where frames begin, and with the indices of those that stand alone. */
static PyObject *hop(PyObject *Py_UNUSED(self), PyObject *args)
{
    Py_buffer in[4];
    Py_ssize_t start, end, header, body_at, frames = 0, singles = 0;
    if (!PyArg_ParseTuple(args, "y*nnnny*w*w*", &in[0], &start, &end, &header, &body_at, &in[1], &in[2], &in[3]))
        return NULL;
    const uint8_t *bytes = in[0].buf, *marks = in[1].buf;
    int64_t *offsets = in[2].buf, *alone = in[3].buf;
    const Py_ssize_t room = (in[2].len < in[3].len ? in[2].len : in[3].len) / 8, marked = in[1].len / MARK_BYTES;
    const int sound = 0 <= start && end <= in[0].len;
    if (sound) {
        Py_BEGIN_ALLOW_THREADS
        while (start <= end - header && frames < room) {
            const uint8_t *frame = bytes + start;
            const uint32_t body = load32(frame + body_at);
            if (body > (uint64_t)(end - start - header))
                break;
            int in_run = 1;
            for (const uint8_t *mark = marks; mark < marks + marked * MARK_BYTES; mark += MARK_BYTES)
                in_run &= mark[1 + frame[mark[0]]];
            alone[singles] = frames;
            singles += !in_run;
            offsets[frames++] = start;
            start += header + (Py_ssize_t)body;
        }
        Py_END_ALLOW_THREADS
    }
    release(in, 4, sound);
    return sound ? Py_BuildValue("nnn", frames, singles, start) : NULL;
}

/* The table of a dialect: ABOUT_ALL numbers, and for each form ABOUT_FORM numbers and three for each column, the wide
 * columns first. PREFIXED: 1 where keys begin with a number in LEB128, which is one wide column more; else 0.
 * FRONT_AT, BACK_AT: where the u16 lies that says how many bytes stand before the key and behind the value; 0: there is
 * none. BARE: there is no value. SAID: -1, or 0 where the form does not say the number. */
enum { CODE_AT, EXTRAS_AT, KEY_LENGTH_AT, REACH, PREFIXED, WIDE, NARROW, ABOUT_ALL };
enum { HEAD_BYTES, FRONT_AT, BACK_AT, BARE, ABOUT_FORM };
enum { AT, SHIFT, SAID, ABOUT_COLUMN };

typedef struct {
    const uint8_t *bytes, *number_of;
    const int32_t *about;
    Py_ssize_t count;
    uint8_t *forms;
    int64_t *parts, *wide;
    int32_t *narrow;
} Columns;

/* Read the number, a u32 in LEB128 of the shortest form, that a key begins with; return its bytes, 0 if there is none or
 * nothing behind it. */
static inline int64_t prefix(const uint8_t *key, int64_t length, int64_t *number)
{
    uint64_t read = 0;
    for (int64_t place = 0; place < 5 && place < length - 1; place++) {
        read |= (uint64_t)(key[place] & 0x7F) << 7 * place;
        if (key[place] < 0x80) {
            *number = (int64_t)read;
            return read > UINT32_MAX || (place && !key[place]) ? 0 : place + 1;
        }
    }
    return 0;
}

/* Read one frame's numbers, and say whether its parts fit into it. The first wide column must not be 0 where said. */
static inline int fill(const Columns *to, Py_ssize_t row, int64_t offset, int64_t end)
{
    const uint8_t *frame = to->bytes + offset;
    const Py_ssize_t count = to->count, wide = to->about[WIDE], narrow = to->about[NARROW];
    const uint8_t form = to->number_of[frame[to->about[CODE_AT]] << 8 | frame[to->about[EXTRAS_AT]]];
    if ((to->forms[row] = form) == NO_FORM)
        return 0;
    const int32_t *said = to->about + ABOUT_ALL + form * (ABOUT_FORM + ABOUT_COLUMN * (wide + narrow));
    const int64_t front = said[FRONT_AT] ? load16(frame + said[FRONT_AT]) : 0;
    const int64_t back = said[BACK_AT] ? load16(frame + said[BACK_AT]) : 0;
    int64_t key_at = offset + said[HEAD_BYTES] + front;
    const int64_t value_at = key_at + load16(frame + to->about[KEY_LENGTH_AT]), value_end = end - back;
    if (to->about[PREFIXED] && value_at <= value_end) {
        const int64_t skipped = prefix(to->bytes + key_at, value_at - key_at, &to->wide[wide * count + row]);
        if (!skipped)
            return 0;
        key_at += skipped;
    }
    to->parts[row] = key_at;
    to->parts[count + row] = value_at;
    to->parts[2 * count + row] = value_end;
    const int32_t *column = said + ABOUT_FORM;
    const int nonzero = column[SAID];
    for (Py_ssize_t each = 0; each < wide; each++, column += ABOUT_COLUMN)
        to->wide[each * count + row] = (int64_t)(load64(frame + column[AT]) >> column[SHIFT]) & column[SAID];
    for (Py_ssize_t each = 0; each < narrow; each++, column += ABOUT_COLUMN)
        to->narrow[each * count + row] = (int32_t)(load64(frame + column[AT]) >> column[SHIFT]) & column[SAID];
    return value_at > key_at && value_at <= value_end && (!said[BARE] || value_at == value_end)
        && (!nonzero || to->wide[row]);
}

/* gather(buffer, offsets, end, table, number_of, forms, parts, wide, narrow) -> (sound frames, forms that they have)
 *
 * number_of: 65536 bytes, by code and length of the extras the form. Filled up to the first frame that is not sound:
 * forms, a byte each; parts, int64: where keys begin, where values begin, where they end; wide, int64, and narrow, int32,
 * column after column. Forms are returned as bits. */
static PyObject *gather(PyObject *Py_UNUSED(self), PyObject *args)
{
    Py_buffer in[8];
    Py_ssize_t end, row = 0;
    uint32_t present = 0;
    if (!PyArg_ParseTuple(args, "y*y*ny*y*w*w*w*w*", &in[0], &in[1], &end, &in[2], &in[3], &in[4], &in[5], &in[6], &in[7]))
        return NULL;
    const int64_t *offsets = in[1].buf;
    const Columns to = {in[0].buf, in[3].buf, in[2].buf, in[1].len / 8, in[4].buf, in[5].buf, in[6].buf, in[7].buf};
    const Py_ssize_t count = to.count;
    int sound = end <= in[0].len && in[3].len == 65536 && in[4].len >= count && in[5].len >= 3 * 8 * count
        && in[6].len >= 8 * count * (to.about[WIDE] + to.about[PREFIXED]) && in[7].len >= 4 * count * to.about[NARROW];
    if (sound) {
        Py_BEGIN_ALLOW_THREADS
        for (; row < count; row++) {
            const int64_t offset = offsets[row], behind = row + 1 < count ? offsets[row + 1] : end;
            sound = 0 <= offset && offset <= in[0].len - to.about[REACH] && behind <= end;
            if (!sound || !fill(&to, row, offset, behind))
                break;
            present |= 1u << to.forms[row];
        }
        Py_END_ALLOW_THREADS
    }
    release(in, 8, sound);
    return sound ? Py_BuildValue("nk", row, (unsigned long)present) : NULL;
}

/* copy(buffer, starts, ends, bounds, data): put what lies between starts and ends (int64) behind each other into data,
 * and where each begins into bounds (int32), which has one more. */
static PyObject *copy(PyObject *Py_UNUSED(self), PyObject *args)
{
    Py_buffer in[5];
    if (!PyArg_ParseTuple(args, "y*y*y*w*w*", &in[0], &in[1], &in[2], &in[3], &in[4]))
        return NULL;
    const uint8_t *bytes = in[0].buf;
    const int64_t *starts = in[1].buf, *ends = in[2].buf;
    int32_t *bounds = in[3].buf;
    uint8_t *data = in[4].buf;
    const Py_ssize_t count = in[1].len / 8, length = in[0].len, room = in[4].len;
    Py_ssize_t filled = 0;
    int sound = in[2].len >= 8 * count && in[3].len >= 4 * (count + 1) && room <= INT32_MAX;
    if (sound) {
        Py_BEGIN_ALLOW_THREADS
        bounds[0] = 0;
        for (Py_ssize_t row = 0; row < count; row++) {
            const int64_t start = starts[row], size = ends[row] - start;
            sound = 0 <= start && 0 <= size && start <= length && size <= length - start && size <= room - filled;
            if (!sound)
                break;
            if (size <= SHORT && start <= length - SHORT && filled <= room - SHORT)
                memcpy(data + filled, bytes + start, SHORT); /* of a known size: no call */
            else
                memcpy(data + filled, bytes + start, (size_t)size);
            bounds[row + 1] = (int32_t)(filled += size);
        }
        Py_END_ALLOW_THREADS
    }
    release(in, 5, sound);
    return sound ? PyLong_FromSsize_t(filled) : NULL;
}

/* join(parts) -> bytes: what lies in a tuple of buffers, behind each other. */
static PyObject *join(PyObject *Py_UNUSED(self), PyObject *args)
{
    PyObject *given, *whole = NULL;
    if (!PyArg_ParseTuple(args, "O!", &PyTuple_Type, &given))
        return NULL;
    const Py_ssize_t count = PyTuple_Size(given);
    Py_ssize_t taken = 0, total = 0;
    Py_buffer *parts = PyMem_Calloc((size_t)count + 1, sizeof(Py_buffer));
    if (!parts)
        return PyErr_NoMemory();
    while (taken < count && !PyObject_GetBuffer(PyTuple_GetItem(given, taken), &parts[taken], PyBUF_SIMPLE)) {
        const Py_ssize_t size = parts[taken++].len;
        if (size > PY_SSIZE_T_MAX - total) {
            PyErr_NoMemory();
            break;
        }
        total += size;
    }
    if (!PyErr_Occurred() && (whole = PyBytes_FromStringAndSize(NULL, total))) {
        char *at = PyBytes_AsString(whole);
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t each = 0; each < count; each++) {
            memcpy(at, parts[each].buf, (size_t)parts[each].len);
            at += parts[each].len;
        }
        Py_END_ALLOW_THREADS
    }
    while (taken)
        PyBuffer_Release(&parts[--taken]);
    PyMem_Free(parts);
    return whole;
}

/* Where a header's numbers lie, and behind them what each first byte means: of no frame, of a plain one, of one with
 * framing extras. Then the length of these stands in the first byte of the key's length. */
enum { HEADER_LENGTH, OPCODE_AT, KEYS_AT, EXTRA_AT, DATATYPE_AT, SPECIFIC_AT, BODY_AT, OPAQUE_AT, CAS_AT, KINDS };
enum { UNKNOWN, PLAIN, FRAMED };

/* Make the tuple of a frame. Without an error NULL says that its parts do not fit into its body. */
static PyObject *make_frame(PyTypeObject *type, allocfunc alloc, const uint8_t *frame, const uint8_t *table, uint32_t body)
{
    const uint8_t *lengths = frame + table[KEYS_AT];
    const int framed = table[KINDS + frame[0]] == FRAMED;
    const uint32_t framing = framed ? lengths[0] : 0, key = framed ? lengths[1] : load16(lengths);
    const uint32_t extras = frame[table[EXTRA_AT]], before = framing + extras + key;
    if (before > body)
        return NULL;
    const char *parts = (const char *)frame + table[HEADER_LENGTH];
    PyObject *items[] = {
        PyLong_FromLong(frame[0]),
        PyLong_FromLong(frame[table[OPCODE_AT]]),
        PyLong_FromLong(load16(frame + table[SPECIFIC_AT])),
        PyLong_FromLong(frame[table[DATATYPE_AT]]),
        PyLong_FromUnsignedLong(load32(frame + table[OPAQUE_AT])),
        PyLong_FromUnsignedLongLong(load64(frame + table[CAS_AT])),
        PyBytes_FromStringAndSize(parts + framing, extras),
        PyBytes_FromStringAndSize(parts + framing + extras, key),
        PyBytes_FromStringAndSize(parts + before, (Py_ssize_t)body - before),
        PyBytes_FromStringAndSize(parts, framing),
    };
    enum { ITEMS = sizeof items / sizeof *items };
    PyObject *made = alloc(type, ITEMS);
    for (int each = 0; each < ITEMS; each++) {
        if (made && items[each]) {
            PyTuple_SetItem(made, each, items[each]);
        } else {
            Py_CLEAR(made);
            Py_XDECREF(items[each]);
        }
    }
    return made;
}

/* cut(type, buffer, start, end, table) -> (frames, position): whole frames as tuples of a type, up to the first that is
 * not whole or not sound. */
static PyObject *cut(PyObject *Py_UNUSED(self), PyObject *args)
{
    PyTypeObject *type;
    Py_buffer in[2];
    Py_ssize_t start, end;
    if (!PyArg_ParseTuple(args, "O!y*nny*", &PyType_Type, &type, &in[0], &start, &end, &in[1]))
        return NULL;
    const uint8_t *bytes = in[0].buf, *table = in[1].buf;
    const allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    const int sound = 0 <= start && end <= in[0].len && in[1].len == KINDS + 256 && PyType_IsSubtype(type, &PyTuple_Type);
    PyObject *frames = sound ? PyList_New(0) : NULL;
    while (frames && start <= end - table[HEADER_LENGTH] && table[KINDS + bytes[start]] != UNKNOWN) {
        const uint32_t body = load32(bytes + start + table[BODY_AT]);
        if (body > (uint64_t)(end - start - table[HEADER_LENGTH]))
            break;
        PyObject *made = make_frame(type, alloc, bytes + start, table, body);
        if (!made && !PyErr_Occurred())
            break;
        if (!made || PyList_Append(frames, made))
            Py_CLEAR(frames);
        Py_XDECREF(made);
        start += table[HEADER_LENGTH] + (Py_ssize_t)body;
    }
    release(in, 2, sound);
    return frames ? Py_BuildValue("Nn", frames, start) : NULL;
}

static PyMethodDef functions[] = {
    {"cut", cut, METH_VARARGS, NULL},
    {"hop", hop, METH_VARARGS, NULL},
    {"gather", gather, METH_VARARGS, NULL},
    {"copy", copy, METH_VARARGS, NULL},
    {"join", join, METH_VARARGS, NULL},
    {"locate", locate, METH_VARARGS, NULL},
    {"find_item", find_item, METH_VARARGS, NULL},
    {"parse_documents", parse_documents, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "penstock.wire._native",
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&module);
}
