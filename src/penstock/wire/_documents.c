/* JSON documents as typed Arrow columns in one pass, with the text of what does not fit.
 *
 * A tree of nodes says which members are in which column. Each node builds its column. So that a document can be taken
 * back, also half of it, every builder can be cut to a length. A document is copied before it is read: behind the copy
 * are zero bytes, which no place reads over. penstock.spark.values.json_rows does the same in Python. */
#include "_json.h"
#include "_values.h"

#include <stdlib.h>

PyObject *parse_documents(PyObject *self, PyObject *args);

/* Kinds of nodes and reasons; penstock.spark.values.column_tree has the same numbers. A GROUP has no column itself. A MAP
 * has two nodes below it: keys and values. JSON_TEXT holds any value as its text. */
enum { GROUP, STRUCT, LIST, MAP, BOOLEAN, INTEGER, FLOAT, DECIMAL, STRING, JSON_TEXT, BINARY, TIMESTAMP, DATE, KINDS };
enum { NO_DOCUMENT, UNKNOWN, REPEATED, OTHER_TYPE, INEXACT, OTHER_TEXT, REASONS };

/* A node in the table. FIRST, SECOND: bits of an integer or a float; precision and scale of a decimal; FIRST: digits of a
 * unit for times that are numbers, else -1. */
enum { KIND, FIRST, SECOND, NAME_AT, NAME_BYTES, BELOW, BELOW_COUNT, COLUMN, ABOUT_NODE };

enum { MAX_UNKNOWN = 1000, UNKNOWN_SLOTS = 2048, SAMPLES = 3, PADDING = 64, FEWEST = 64 };

/* What a value leaves for the rest: nothing, all of it, or an object that is already there. */
typedef enum { FITS, LEAVES_ALL, LEAVES_SOME } Left;

typedef struct {
    uint8_t *at;
    int64_t used, room;
} Bytes;

typedef struct {
    int64_t count, rows[SAMPLES];
    int samples;
} Tally;

typedef struct Node {
    int kind, first, second, column, width, below_count;
    struct Node *below;
    const uint8_t *name;
    int32_t name_bytes;
    int32_t *slots; /* places of `below` by name, -1 for none */
    uint32_t slot_mask;
    int next; /* the place of the member that probably comes next */
    uint64_t seen; /* the object that had this member last */
    const uint8_t *last_key; /* of an object with a repeated name: where this member stands last */
    int64_t length, room;
    uint8_t *validity, *values; /* values: also offsets, int32 */
    Bytes data;
    Tally tallies[REASONS];
} Node;

typedef struct {
    const Node *node;
    const uint8_t *name; /* of an unknown member, in the document */
    int64_t name_bytes, count;
    int reason, is_escaped;
} Event;

typedef struct {
    int64_t node, at, bytes; /* at: of the name in `unknown_names` */
    uint64_t hash;
    Tally tally;
} Unknown;

typedef struct {
    Scan scan;
    Node *nodes, rest, objects;
    int node_count, is_quiet, no_memory; /* is_quiet: within an array, which is in the rest as a whole */
    Event *events;
    int64_t event_count, event_room;
    uint64_t object_number;
    Bytes document, text, unknown_names;
    Unknown unknown[MAX_UNKNOWN];
    int32_t unknown_slots[UNKNOWN_SLOTS];
    int unknown_count;
    Tally other_unknown;
} Parser;

static const uint8_t *read_typed(Parser *parser, Node *node, const uint8_t *at, int depth, Left *left);

/* Memory: each function returns 0 if there is none. */

static int make_room(Bytes *bytes, int64_t more)
{
    const int64_t need = bytes->used + more;
    if (need <= bytes->room && bytes->at)
        return 1;
    const int64_t room = need + need / 2 + FEWEST;
    uint8_t *at = realloc(bytes->at, (size_t)room);
    if (!at)
        return 0;
    bytes->at = at;
    bytes->room = room;
    return 1;
}

static int add_bytes(Bytes *bytes, const void *from, int64_t count)
{
    if (!make_room(bytes, count))
        return 0;
    if (count)
        memcpy(bytes->at + bytes->used, from, (size_t)count);
    bytes->used += count;
    return 1;
}

/* Builders */

static inline int has_offsets(const Node *node)
{
    return node->kind == STRING || node->kind == JSON_TEXT || node->kind == BINARY || node->kind == LIST || node->kind == MAP;
}

static inline int32_t *offsets_of(const Node *node)
{
    return (int32_t *)(void *)node->values;
}

static int grow(Node *node)
{
    const int64_t room = node->room ? 2 * node->room : FEWEST;
    uint8_t *validity = realloc(node->validity, (size_t)((room + 7) / 8));
    if (!validity)
        return 0;
    node->validity = validity;
    if (node->width) {
        uint8_t *values = realloc(node->values, (size_t)((room + 1) * node->width));
        if (!values)
            return 0;
        node->values = values;
        if (!node->room)
            memset(values, 0, (size_t)node->width); /* the first offset */
    }
    node->room = room;
    return 1;
}

static inline void set_bit(uint8_t *bits, int64_t at, int is_set)
{
    const uint8_t bit = (uint8_t)(1u << (at & 7));
    if (is_set)
        bits[at >> 3] |= bit;
    else
        bits[at >> 3] &= (uint8_t)~bit;
}

/* Add a row, whose value the caller has put or puts at the last place; return 0 without memory. */
static inline int add_row(Parser *parser, Node *node, int is_valid)
{
    if (node->length == node->room && !grow(node)) {
        parser->no_memory = 1;
        return 0;
    }
    set_bit(node->validity, node->length++, is_valid);
    return 1;
}

static int add_null(Parser *parser, Node *node)
{
    if (!add_row(parser, node, 0))
        return 0;
    const int64_t row = node->length - 1;
    if (has_offsets(node))
        offsets_of(node)[row + 1] = offsets_of(node)[row];
    else if (node->kind == BOOLEAN)
        set_bit(node->values, row, 0);
    else if (node->width)
        memset(node->values + row * node->width, 0, (size_t)node->width);
    return 1;
}

static int add_value(Parser *parser, Node *node, const void *value)
{
    if (!add_row(parser, node, 1))
        return 0;
    memcpy(node->values + (node->length - 1) * node->width, value, (size_t)node->width);
    return 1;
}

static int add_text(Parser *parser, Node *node, const uint8_t *text, int64_t bytes)
{
    if (!add_bytes(&node->data, text, bytes)) {
        parser->no_memory = 1;
        return 0;
    }
    if (!add_row(parser, node, 1))
        return 0;
    offsets_of(node)[node->length] = (int32_t)node->data.used;
    return 1;
}

static void clear_bits(uint8_t *bits, int64_t from, int64_t to)
{
    for (; from < to && from & 7; from++)
        set_bit(bits, from, 0);
    if (from < to)
        memset(bits + (from >> 3), 0, (size_t)((to - from + 7) >> 3));
}

/* Add nulls to a column until it has a length. Columns of members that objects lack stay behind until a value comes. */
static int fill(Parser *parser, Node *node, int64_t length)
{
    while (node->length < length) {
        if (node->length == node->room && !grow(node)) {
            parser->no_memory = 1;
            return 0;
        }
        const int64_t from = node->length, to = length < node->room ? length : node->room;
        clear_bits(node->validity, from, to);
        if (has_offsets(node))
            for (int64_t row = from; row < to; row++)
                offsets_of(node)[row + 1] = offsets_of(node)[from];
        else if (node->kind == BOOLEAN)
            clear_bits(node->values, from, to);
        else if (node->width)
            memset(node->values + from * node->width, 0, (size_t)((to - from) * node->width));
        node->length = to;
    }
    return 1;
}

/* Add the nulls that columns lack in the end. */
static int fill_all(Parser *parser, Node *node, int64_t length)
{
    if (node->kind != GROUP && !fill(parser, node, length))
        return 0;
    for (int each = 0; each < node->below_count; each++) {
        Node *below = &node->below[each];
        if (!fill_all(parser, below, node->kind == GROUP || node->kind == STRUCT ? length : below->length))
            return 0;
    }
    return 1;
}

static void cut(Node *node, int64_t length)
{
    int64_t inner = length;
    if (node->kind != GROUP && length < node->length)
        node->length = length;
    if (has_offsets(node))
        node->data.used = inner = offsets_of(node)[node->length];
    for (int each = 0; each < node->below_count; each++)
        cut(&node->below[each], inner);
}

/* The rest and the events of a document */

static int add_event(Parser *parser, const Node *node, int reason)
{
    if (parser->event_count && reason != UNKNOWN) {
        Event *last = &parser->events[parser->event_count - 1];
        if (last->node == node && last->reason == reason) {
            last->count++;
            return 1;
        }
    }
    if (parser->event_count == parser->event_room) {
        const int64_t room = 2 * parser->event_room + FEWEST;
        Event *events = realloc(parser->events, (size_t)room * sizeof(Event));
        if (!events) {
            parser->no_memory = 1;
            return 0;
        }
        parser->events = events;
        parser->event_room = room;
    }
    const Event event = {.node = node, .reason = reason, .count = 1};
    parser->events[parser->event_count++] = event;
    return 1;
}

static int add_unknown(Parser *parser, const Node *node, const uint8_t *name, int64_t bytes, int is_escaped)
{
    if (!add_event(parser, node, UNKNOWN))
        return 0;
    Event *event = &parser->events[parser->event_count - 1];
    event->name = name;
    event->name_bytes = bytes;
    event->is_escaped = is_escaped;
    return 1;
}

/* Begin a member of the rest: its name, behind what the object has already. */
static int begin_member(Parser *parser, int is_first, const uint8_t *key, const uint8_t *key_end)
{
    Bytes *rest = &parser->rest.data;
    if (parser->is_quiet)
        return 1;
    if (!add_bytes(rest, is_first ? "{" : ",", 1) || !add_bytes(rest, key, key_end - key) || !add_bytes(rest, ":", 1)) {
        parser->no_memory = 1;
        return 0;
    }
    return 1;
}

static int add_rest(Parser *parser, const uint8_t *text, const uint8_t *end)
{
    if (!parser->is_quiet && !add_bytes(&parser->rest.data, text, end - text)) {
        parser->no_memory = 1;
        return 0;
    }
    return 1;
}

static int end_object(Parser *parser, int is_first, Left *left)
{
    *left = is_first ? FITS : LEAVES_SOME;
    return is_first || add_rest(parser, (const uint8_t *)"}", (const uint8_t *)"}" + 1);
}

/* Texts */

/* Make what a checked string means; return it, NULL without memory. text: between its quotes. has_halves: whether there is
 * half a surrogate pair in it. */
static const uint8_t *mean_text(Parser *parser, Bytes *to, const uint8_t *text, int64_t *bytes, int *has_halves)
{
    const uint8_t *end = text + *bytes;
    *has_halves = 0;
    to->used = 0;
    if (!make_room(to, *bytes)) {
        parser->no_memory = 1;
        return NULL;
    }
    uint8_t *at = to->at;
    while (text < end) {
        const uint8_t *escape = memchr(text, '\\', (size_t)(end - text));
        const int64_t plain = (escape ? escape : end) - text;
        memcpy(at, text, (size_t)plain);
        at += plain;
        text += plain;
        if (escape) {
            int count;
            text = unescape(text + 1, at, &count);
            *has_halves |= count == 3 && at[0] == 0xED && at[1] >= 0xA0;
            at += count;
        }
    }
    *at = 0; /* there is room: an escape is longer than what it means. Numbers in it end here */
    *bytes = at - to->at;
    return to->at;
}

/* Read a string and what it means. */
static const uint8_t *read_text(Parser *parser, const uint8_t *at, const uint8_t **text, int64_t *bytes, int *has_halves)
{
    parser->scan.escaped = 0;
    const uint8_t *end = read_string(&parser->scan, at + 1);
    if (!end)
        return NULL;
    *text = at + 1;
    *bytes = end - at - 2;
    *has_halves = 0;
    if (parser->scan.escaped && !(*text = mean_text(parser, &parser->text, *text, bytes, has_halves)))
        return NULL;
    return end;
}

/* Names */

static uint32_t hash_name(const uint8_t *name, int64_t bytes)
{
    uint32_t hash = 2166136261u;
    for (int64_t at = 0; at < bytes; at++)
        hash = (hash ^ name[at]) * 16777619u;
    return hash ^ hash >> 15;
}

static inline int is_named(const Node *node, const uint8_t *name, int64_t bytes)
{
    return node->name_bytes == bytes && !memcmp(node->name, name, (size_t)bytes);
}

static Node *find_member(Node *node, const uint8_t *name, int64_t bytes)
{
    if (node->next < node->below_count && is_named(&node->below[node->next], name, bytes))
        return &node->below[node->next++];
    if (!node->slots)
        return NULL;
    for (uint32_t slot = hash_name(name, bytes) & node->slot_mask; node->slots[slot] >= 0; slot = (slot + 1) & node->slot_mask)
        if (is_named(&node->below[node->slots[slot]], name, bytes)) {
            node->next = node->slots[slot] + 1;
            return &node->below[node->slots[slot]];
        }
    return NULL;
}

static int index_names(Node *node)
{
    uint32_t slots = 4;
    if (node->kind != GROUP && node->kind != STRUCT)
        return 1;
    while (slots < 2 * (uint32_t)node->below_count)
        slots *= 2;
    if (!(node->slots = malloc(slots * sizeof node->slots[0])))
        return 0;
    memset(node->slots, 0xFF, slots * sizeof node->slots[0]);
    node->slot_mask = slots - 1;
    for (int each = 0; each < node->below_count; each++) {
        uint32_t slot = hash_name(node->below[each].name, node->below[each].name_bytes) & node->slot_mask;
        while (node->slots[slot] >= 0)
            slot = (slot + 1) & node->slot_mask;
        node->slots[slot] = each;
    }
    return 1;
}

/* A member, as far as its value. */
typedef struct {
    const uint8_t *key, *key_end, *value, *name;
    int64_t name_bytes;
    int is_escaped, has_halves;
} Member;

/* Return whether there is one at a place, which is not the end of an object. */
static int read_key(Parser *parser, const uint8_t *at, Member *member)
{
    if (*at != '"')
        return 0;
    member->key = at;
    if (!(at = read_text(parser, at, &member->name, &member->name_bytes, &member->has_halves)))
        return 0;
    member->is_escaped = parser->scan.escaped;
    member->key_end = at;
    if (*at != ':' && *(at = skip(at)) != ':')
        return 0;
    member->value = skip(at + 1);
    return 1;
}

/* Go to the next member or element; return NULL at a fault. is_end: whether it is the end, behind which is the result. */
static inline const uint8_t *next_part(const uint8_t *at, uint8_t close, int *is_end)
{
    at = skip(at);
    *is_end = *at == close;
    if (*is_end)
        return at + 1;
    return *at == ',' ? skip(at + 1) : NULL;
}

static inline int is_null(const uint8_t *value, const uint8_t *end)
{
    return *value == 'n' && end - value == 4;
}

/* Put a member that has no column into the rest, unless it is null; return where it ends. */
static const uint8_t *leave_member(Parser *parser, const Node *node, const Member *member, int depth, int reason, int *is_first)
{
    const uint8_t *end = read_value(&parser->scan, member->value, depth, 0);
    if (!end || is_null(member->value, end))
        return end;
    const int is_added = reason == UNKNOWN
        ? add_unknown(parser, node, member->key + 1, member->key_end - member->key - 2, member->is_escaped)
        : add_event(parser, node, reason);
    if (!is_added || !begin_member(parser, *is_first, member->key, member->key_end)
        || !add_rest(parser, member->value, end))
        return NULL;
    *is_first = 0;
    return end;
}

/* Read the value of a member into its node, and put into the rest what it leaves. */
static const uint8_t *read_member(Parser *parser, Node *node, const Member *member, int depth, int *is_first)
{
    const int64_t before = parser->rest.data.used;
    const int is_nested = node->kind <= MAP;
    Left left = FITS;
    if (is_nested && !begin_member(parser, *is_first, member->key, member->key_end))
        return NULL;
    const uint8_t *end = read_typed(parser, node, member->value, depth, &left);
    if (!end)
        return NULL;
    if (left == FITS) {
        parser->rest.data.used = before;
        return end;
    }
    if (left == LEAVES_ALL) {
        if (!is_nested && !begin_member(parser, *is_first, member->key, member->key_end))
            return NULL;
        if (!add_rest(parser, member->value, end))
            return NULL;
    }
    *is_first = 0;
    return end;
}

/* Objects: GROUP and STRUCT */

static const uint8_t has_repeated_name; /* its address stands for that result */

static const uint8_t *read_members(
    Parser *parser, Node *node, const uint8_t *open, int depth, int64_t row, int is_checked, Left *left)
{
    const uint64_t number = ++parser->object_number;
    const uint8_t *at = skip(open + 1);
    int is_first = 1, is_end = *at == '}';
    at += is_end;
    node->next = 0;
    while (!is_end) {
        Member member;
        if (!read_key(parser, at, &member))
            return NULL;
        Node *below = find_member(node, member.name, member.name_bytes);
        if (!below)
            at = leave_member(parser, node, &member, depth, UNKNOWN, &is_first);
        else if (is_checked && below->last_key != member.key)
            at = leave_member(parser, below, &member, depth, REPEATED, &is_first);
        else if (below->seen == number)
            return &has_repeated_name;
        else {
            below->seen = number;
            if (below->kind != GROUP && below->length < row && !fill(parser, below, row))
                return NULL;
            at = read_member(parser, below, &member, depth, &is_first);
        }
        if (!at || !(at = next_part(at, '}', &is_end)))
            return NULL;
    }
    return end_object(parser, is_first, left) ? at : NULL;
}

/* Note where each member stands last. */
static int find_last_keys(Parser *parser, Node *node, const uint8_t *open, int depth)
{
    const uint8_t *at = skip(open + 1);
    for (int is_end = 0; !is_end;) {
        Member member;
        if (!read_key(parser, at, &member))
            return 0;
        Node *below = find_member(node, member.name, member.name_bytes);
        if (below)
            below->last_key = member.key;
        if (!(at = read_value(&parser->scan, member.value, depth, 0)) || !(at = next_part(at, '}', &is_end)))
            return 0;
    }
    return 1;
}

/* row: of the columns below. Of a repeated name the last value counts, so an object that has one is read again. */
static const uint8_t *read_object_into(Parser *parser, Node *node, const uint8_t *open, int depth, int64_t row, Left *left)
{
    const int64_t rest = parser->rest.data.used, events = parser->event_count;
    const int64_t last_count = events ? parser->events[events - 1].count : 0;
    const uint8_t *end = read_members(parser, node, open, depth + 1, row, 0, left);
    if (end != &has_repeated_name)
        return end;
    parser->rest.data.used = rest;
    parser->event_count = events;
    if (events)
        parser->events[events - 1].count = last_count;
    for (int each = 0; each < node->below_count; each++)
        cut(&node->below[each], row);
    if (!find_last_keys(parser, node, open, depth + 1))
        return NULL;
    return read_members(parser, node, open, depth + 1, row, 1, left);
}

/* Maps */

typedef struct {
    const uint8_t *name;
    int64_t bytes, place;
} Key;

static int compare_keys(const void *a, const void *b)
{
    const Key *left = a, *right = b;
    if (left->bytes != right->bytes)
        return left->bytes < right->bytes ? -1 : 1;
    const int order = memcmp(left->name, right->name, (size_t)left->bytes);
    return order ? order : left->place < right->place ? -1 : 1;
}

/* Return which keys of a map's last entries stand last, a byte each; NULL if none stands twice, or without memory. */
static uint8_t *find_last_entries(Parser *parser, const Node *names, int64_t start)
{
    const int64_t count = names->length - start;
    const int32_t *offsets = offsets_of(names);
    uint8_t *is_last = NULL;
    if (count < 2)
        return NULL;
    Key *keys = malloc((size_t)count * sizeof(Key));
    if (!keys) {
        parser->no_memory = 1;
        return NULL;
    }
    for (int64_t each = 0; each < count; each++) {
        const Key key = {names->data.at + offsets[start + each], offsets[start + each + 1] - offsets[start + each], each};
        keys[each] = key;
    }
    qsort(keys, (size_t)count, sizeof(Key), compare_keys);
    for (int64_t each = 1; each < count; each++) {
        if (keys[each].bytes != keys[each - 1].bytes
            || memcmp(keys[each].name, keys[each - 1].name, (size_t)keys[each].bytes))
            continue;
        if (!is_last) {
            if (!(is_last = malloc((size_t)count))) {
                parser->no_memory = 1;
                break;
            }
            memset(is_last, 1, (size_t)count);
        }
        is_last[keys[each - 1].place] = 0;
    }
    free(keys);
    return is_last;
}

/* is_last: of each member whose name is text; NULL if all are. */
static const uint8_t *read_entries(
    Parser *parser, Node *node, const uint8_t *open, int depth, const uint8_t *is_last, Left *left)
{
    Node *names = &node->below[0], *values = &node->below[1];
    const uint8_t *at = skip(open + 1);
    int is_first = 1, is_end = *at == '}';
    at += is_end;
    for (int64_t place = 0; !is_end;) {
        Member member;
        if (!read_key(parser, at, &member))
            return NULL;
        if (member.has_halves)
            at = leave_member(parser, values, &member, depth, INEXACT, &is_first);
        else if (is_last && !is_last[place++])
            at = leave_member(parser, values, &member, depth, REPEATED, &is_first);
        else if (!add_text(parser, names, member.name, member.name_bytes))
            return NULL;
        else
            at = read_member(parser, values, &member, depth, &is_first);
        if (!at || !(at = next_part(at, '}', &is_end)))
            return NULL;
    }
    return end_object(parser, is_first, left) ? at : NULL;
}

static const uint8_t *read_map(Parser *parser, Node *node, const uint8_t *open, int depth, Left *left)
{
    const int64_t rest = parser->rest.data.used, events = parser->event_count, start = node->below[0].length;
    const int64_t last_count = events ? parser->events[events - 1].count : 0;
    const uint8_t *end = read_entries(parser, node, open, depth + 1, NULL, left);
    uint8_t *is_last = end ? find_last_entries(parser, &node->below[0], start) : NULL;
    if (is_last) {
        parser->rest.data.used = rest;
        parser->event_count = events;
        if (events)
            parser->events[events - 1].count = last_count;
        cut(&node->below[0], start);
        cut(&node->below[1], start);
        end = read_entries(parser, node, open, depth + 1, is_last, left);
        free(is_last);
    }
    if (!end || parser->no_memory || !add_row(parser, node, 1))
        return NULL;
    offsets_of(node)[node->length] = (int32_t)node->below[0].length;
    return end;
}

static const uint8_t *read_list(Parser *parser, Node *node, const uint8_t *open, int depth, Left *left)
{
    const uint8_t *at = skip(open + 1);
    int is_end = *at == ']';
    at += is_end;
    parser->is_quiet++;
    while (!is_end) {
        Left part = FITS;
        if (!(at = read_typed(parser, node->below, at, depth + 1, &part)) || !(at = next_part(at, ']', &is_end)))
            return NULL;
        if (part)
            *left = LEAVES_ALL;
    }
    parser->is_quiet--;
    if (!add_row(parser, node, 1))
        return NULL;
    offsets_of(node)[node->length] = (int32_t)node->below->length;
    return at;
}

/* Values: each function returns the reason why a value is not held, FITS_COLUMN if the column has it now. */

enum { FITS_COLUMN = -1 };

static int hold_number(Parser *parser, Node *node, const uint8_t *text, const uint8_t *end)
{
    const Number number = split_number(text, end);
    union {
        int64_t integer;
        int32_t day;
        double real;
        float narrow;
        uint8_t decimal[16];
    } value;
    int is_held;
    switch (node->kind) {
    case INTEGER:
        is_held = to_integer(&number, node->first, &value.integer);
        if (is_held && node->first == 32) {
            const int32_t narrow = (int32_t)value.integer;
            memcpy(&value, &narrow, sizeof narrow);
        } else if (is_held && node->first == 16) {
            const int16_t narrow = (int16_t)value.integer;
            memcpy(&value, &narrow, sizeof narrow);
        } else if (is_held && node->first == 8) {
            const int8_t narrow = (int8_t)value.integer;
            memcpy(&value, &narrow, sizeof narrow);
        }
        break;
    case FLOAT:
        is_held = to_float(&number, node->first == 32 ? &FLOAT_FORMAT : &DOUBLE_FORMAT, &value.real);
        if (is_held && node->first == 32)
            value.narrow = (float)value.real;
        break;
    case DECIMAL:
        is_held = to_decimal(&number, node->first, node->second, value.decimal);
        break;
    case TIMESTAMP:
        if (node->first < 0)
            return OTHER_TYPE;
        is_held = to_time(&number, node->first, &value.integer);
        break;
    case DATE:
        if (node->first < 0)
            return OTHER_TYPE;
        is_held = to_day(&number, node->first, &value.day);
        break;
    default:
        return OTHER_TYPE;
    }
    if (is_held)
        add_value(parser, node, &value);
    return is_held ? FITS_COLUMN : INEXACT;
}

static int hold_time(Parser *parser, Node *node, const uint8_t *text, const uint8_t *end)
{
    int64_t time;
    const Found found = read_time(text, end, &time);
    if (found == FOUND_EXACTLY)
        add_value(parser, node, &time);
    return found == FOUND_EXACTLY ? FITS_COLUMN : found == NOT_EXACT ? INEXACT : OTHER_TEXT;
}

/* text: padded with zero bytes or a quote, so that it ends for whoever reads a number in it. */
static int hold_text(Parser *parser, Node *node, const uint8_t *text, int64_t bytes, int has_halves)
{
    int32_t day;
    if (node->kind == STRING) {
        if (has_halves)
            return INEXACT;
        add_text(parser, node, text, bytes);
        return FITS_COLUMN;
    }
    if (node->kind == DECIMAL || ((node->kind == TIMESTAMP || node->kind == DATE) && node->first >= 0)) {
        const uint8_t *end = bytes ? read_number(text) : NULL;
        if (end && end == text + bytes)
            return hold_number(parser, node, text, end);
    }
    if (node->kind == TIMESTAMP)
        return hold_time(parser, node, text, text + bytes);
    if (node->kind == DATE && read_day(text, text + bytes, &day)) {
        add_value(parser, node, &day);
        return FITS_COLUMN;
    }
    if (node->kind == BINARY) {
        if (!make_room(&node->data, bytes)) {
            parser->no_memory = 1;
            return FITS_COLUMN;
        }
        const int64_t decoded = read_base64(text, bytes, node->data.at + node->data.used);
        if (decoded >= 0) {
            node->data.used += decoded;
            add_text(parser, node, NULL, 0);
            return FITS_COLUMN;
        }
    }
    return node->kind == DECIMAL || node->kind >= BINARY ? OTHER_TEXT : OTHER_TYPE;
}

/* Hold the milliseconds since 1970 that a text between two places is. */
static int hold_milliseconds(Parser *parser, Node *node, const uint8_t *text, const uint8_t *end)
{
    enum { MILLISECONDS = 3 };
    int64_t time;
    if (text == end || read_number(text) != end)
        return OTHER_TEXT;
    const Number number = split_number(text, end);
    if (!to_time(&number, MILLISECONDS, &time))
        return INEXACT;
    add_value(parser, node, &time);
    return FITS_COLUMN;
}

/* Read an object that was checked, if it has one member of a name only. */
static int read_only_member(Parser *parser, const uint8_t *open, const char *name, Member *member)
{
    const size_t bytes = strlen(name);
    const uint8_t *at = skip(open + 1);
    return *at != '}' && read_key(parser, at, member) && member->name_bytes == (int64_t)bytes
        && !memcmp(member->name, name, bytes) && *skip(read_value(&parser->scan, member->value, 0, 0)) == '}';
}

/* Hold `{"$date": ...}` that was checked: of a text, milliseconds, or `{"$numberLong": "milliseconds"}`. */
static int hold_date_object(Parser *parser, Node *node, const uint8_t *open)
{
    const uint8_t *text;
    int64_t bytes;
    int has_halves;
    Member member;
    if (!read_only_member(parser, open, "$date", &member))
        return OTHER_TYPE;
    const uint8_t *value = member.value;
    if (digit(*value) || *value == '-')
        return hold_milliseconds(parser, node, value, read_number(value));
    const int is_nested = *value == '{';
    if (is_nested && !read_only_member(parser, value, "$numberLong", &member))
        return OTHER_TEXT;
    if (*member.value != '"' || !read_text(parser, member.value, &text, &bytes, &has_halves))
        return OTHER_TEXT;
    if (is_nested)
        return hold_milliseconds(parser, node, text, text + bytes);
    return hold_time(parser, node, text, text + bytes);
}

static const uint8_t *read_scalar(Parser *parser, Node *node, const uint8_t *at, int depth, Left *left)
{
    const uint8_t *end, *text;
    int64_t bytes;
    int has_halves, reason = OTHER_TYPE;
    if (*at == '"' && node->kind != JSON_TEXT) {
        if (!(end = read_text(parser, at, &text, &bytes, &has_halves)))
            return NULL;
        reason = hold_text(parser, node, text, bytes, has_halves);
    } else {
        if (!(end = read_value(&parser->scan, at, depth, 0)))
            return NULL;
        if (node->kind == JSON_TEXT) {
            add_text(parser, node, at, end - at);
            reason = FITS_COLUMN;
        } else if (digit(*at) || *at == '-')
            reason = hold_number(parser, node, at, end);
        else if (node->kind == TIMESTAMP && *at == '{')
            reason = hold_date_object(parser, node, at);
        else if (node->kind == BOOLEAN && (*at == 't' || *at == 'f')) {
            if (add_row(parser, node, 1))
                set_bit(node->values, node->length - 1, *at == 't');
            reason = FITS_COLUMN;
        }
    }
    if (reason != FITS_COLUMN) {
        *left = LEAVES_ALL;
        if (!add_event(parser, node, reason) || (node->kind != GROUP && !add_null(parser, node)))
            return NULL;
    }
    return parser->no_memory ? NULL : end;
}

/* Read a value into its column; return where it ends, NULL at a fault. The caller puts into the rest what is left of it. */
static const uint8_t *read_typed(Parser *parser, Node *node, const uint8_t *at, int depth, Left *left)
{
    if (*at == 'n') {
        const uint8_t *end = read_value(&parser->scan, at, depth, 0);
        return !end || (node->kind != GROUP && !add_null(parser, node)) ? NULL : end;
    }
    const int is_nested = (*at == '{' && (node->kind == STRUCT || node->kind == GROUP || node->kind == MAP))
        || (*at == '[' && node->kind == LIST);
    if (!is_nested)
        return read_scalar(parser, node, at, depth, left);
    if (depth >= parser->scan.most_levels)
        return NULL;
    switch (node->kind) {
    case LIST:
        return read_list(parser, node, at, depth, left);
    case MAP:
        return read_map(parser, node, at, depth, left);
    case GROUP:
        return read_object_into(parser, node, at, depth, parser->objects.length, left);
    default:
        at = read_object_into(parser, node, at, depth, node->length, left);
        return at && add_row(parser, node, 1) ? at : NULL;
    }
}

/* Documents */

static void count_row(Tally *tally, int64_t row, int64_t count)
{
    tally->count += count;
    if (tally->samples < SAMPLES && (!tally->samples || tally->rows[tally->samples - 1] != row))
        tally->rows[tally->samples++] = row;
}

/* Return the tally of an unknown member; NULL without memory. */
static Tally *find_unknown(Parser *parser, const Event *event)
{
    const int64_t node = event->node - parser->nodes;
    const uint8_t *name = event->name;
    int64_t bytes = event->name_bytes;
    int has_halves;
    if (event->is_escaped && !(name = mean_text(parser, &parser->text, name, &bytes, &has_halves)))
        return NULL;
    const uint64_t hash = hash_name(name, bytes) + 31 * (uint64_t)node;
    uint32_t slot = (uint32_t)hash % UNKNOWN_SLOTS;
    for (; parser->unknown_slots[slot] >= 0; slot = (slot + 1) % UNKNOWN_SLOTS) {
        Unknown *found = &parser->unknown[parser->unknown_slots[slot]];
        if (found->hash == hash && found->node == node && found->bytes == bytes
            && !memcmp(parser->unknown_names.at + found->at, name, (size_t)bytes))
            return &found->tally;
    }
    if (parser->unknown_count == MAX_UNKNOWN)
        return &parser->other_unknown;
    const Unknown added = {.node = node, .at = parser->unknown_names.used, .bytes = bytes, .hash = hash};
    if (!add_bytes(&parser->unknown_names, name, bytes)) {
        parser->no_memory = 1;
        return NULL;
    }
    parser->unknown[parser->unknown_count] = added;
    parser->unknown_slots[slot] = parser->unknown_count;
    return &parser->unknown[parser->unknown_count++].tally;
}

static int count_events(Parser *parser, int64_t row)
{
    for (int64_t each = 0; each < parser->event_count; each++) {
        const Event *event = &parser->events[each];
        Tally *tally = event->reason == UNKNOWN ? find_unknown(parser, event)
                                                : &parser->nodes[event->node - parser->nodes].tallies[event->reason];
        if (!tally)
            return 0;
        count_row(tally, row, event->count);
    }
    return 1;
}

/* Take back what a value left that is no object. */
static int leave_document(Parser *parser, int64_t row)
{
    cut(parser->nodes, row);
    parser->rest.data.used = offsets_of(&parser->rest)[row];
    parser->event_count = parser->is_quiet = 0;
    return add_event(parser, parser->nodes, NO_DOCUMENT) && add_null(parser, &parser->rest);
}

/* Read one value as a row; return 0 without memory. value: NULL for null. */
static int read_row(Parser *parser, const uint8_t *value, int64_t bytes)
{
    const int64_t row = parser->objects.length;
    Left left = FITS;
    if (!value)
        return add_null(parser, &parser->rest) && add_null(parser, &parser->objects);
    parser->document.used = 0;
    if (!make_room(&parser->document, bytes + PADDING))
        return 0;
    uint8_t *text = parser->document.at;
    memcpy(text, value, (size_t)bytes);
    memset(text + bytes, 0, PADDING);
    parser->scan.text = text;
    parser->scan.end = text + bytes + PADDING;
    parser->scan.levels = 0;
    parser->event_count = 0;
    const uint8_t *at = skip(text);
    at = *at == '{' ? read_object_into(parser, parser->nodes, at, 0, row, &left) : NULL;
    if (parser->no_memory)
        return 0;
    const int is_object = at && skip(at) == text + bytes;
    if (is_object) {
        if (!add_row(parser, &parser->rest, left == LEAVES_SOME))
            return 0;
        offsets_of(&parser->rest)[row + 1] = (int32_t)parser->rest.data.used;
    } else if (!leave_document(parser, row))
        return 0;
    if (!count_events(parser, row) || !add_row(parser, &parser->objects, 1))
        return 0;
    set_bit(parser->objects.values, row, is_object);
    return 1;
}

/* Arrow arrays, in the C data interface: https://arrow.apache.org/docs/format/CDataInterface.html */

struct ArrowArray {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct ArrowArray **children, *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};

static void release_array(struct ArrowArray *array)
{
    for (int64_t each = 0; each < array->n_children; each++) {
        if (array->children[each]->release)
            array->children[each]->release(array->children[each]);
        free(array->children[each]);
    }
    for (int64_t each = 0; each < array->n_buffers; each++)
        free((void *)(uintptr_t)array->buffers[each]);
    free(array->buffers);
    free(array->children);
    array->release = NULL;
}

/* Return an array with room for its buffers and its children, which the caller creates; NULL without memory. */
static struct ArrowArray *make_array(int64_t length, int64_t buffers, int64_t children)
{
    struct ArrowArray *array = calloc(1, sizeof *array);
    if (!array)
        return NULL;
    array->length = length;
    array->null_count = -1;
    array->release = release_array;
    array->buffers = calloc((size_t)buffers, sizeof array->buffers[0]);
    array->children = calloc((size_t)children + 1, sizeof array->children[0]);
    if (!array->buffers || !array->children) {
        release_array(array);
        free(array);
        return NULL;
    }
    array->n_buffers = buffers;
    return array;
}

static void free_array(struct ArrowArray *array)
{
    if (array && array->release)
        array->release(array);
    free(array);
}

/* Add a child, which may be NULL without memory; return whether there was memory. */
static int add_child(struct ArrowArray *array, struct ArrowArray *child)
{
    if (child)
        array->children[array->n_children++] = child;
    return child != NULL;
}

static struct ArrowArray *take_array(Node *node);

/* Return the array of the entries of a map, which has the arrays below as children. */
static struct ArrowArray *take_entries(Node *node)
{
    struct ArrowArray *entries = make_array(node->below[0].length, 1, 2);
    if (!entries)
        return NULL;
    entries->null_count = 0;
    if (!add_child(entries, take_array(&node->below[0])) || !add_child(entries, take_array(&node->below[1]))) {
        free_array(entries);
        return NULL;
    }
    return entries;
}

/* Make an array of what a node has built, and take it away from the node. */
static struct ArrowArray *take_array(Node *node)
{
    const int is_text = node->kind == STRING || node->kind == JSON_TEXT || node->kind == BINARY;
    struct ArrowArray *array = make_array(node->length, is_text ? 3 : node->kind == STRUCT ? 1 : 2, node->below_count);
    if (!array)
        return NULL;
    array->buffers[0] = node->validity;
    node->validity = NULL;
    if (node->kind != STRUCT) {
        array->buffers[1] = node->values;
        node->values = NULL;
    }
    if (is_text) {
        array->buffers[2] = node->data.at;
        node->data.at = NULL;
    }
    int is_whole = 1;
    if (node->kind == MAP)
        is_whole = add_child(array, take_entries(node));
    else
        for (int each = 0; each < node->below_count && is_whole; each++)
            is_whole = add_child(array, take_array(&node->below[each]));
    if (!is_whole) {
        free_array(array);
        return NULL;
    }
    return array;
}

/* Return a struct of all columns, the rest, and whether each value is an object. */
static struct ArrowArray *take_columns(Parser *parser, int columns)
{
    struct ArrowArray *array = make_array(parser->objects.length, 1, columns + 2);
    int is_whole = array != NULL;
    if (array)
        array->null_count = 0;
    for (int column = 0; column < columns && is_whole; column++)
        for (int each = 0; each < parser->node_count; each++)
            if (parser->nodes[each].column == column) {
                is_whole = add_child(array, take_array(&parser->nodes[each]));
                break;
            }
    if (is_whole && add_child(array, take_array(&parser->rest)) && add_child(array, take_array(&parser->objects)))
        return array;
    free_array(array);
    return NULL;
}

static void free_capsule(PyObject *capsule)
{
    free_array(PyCapsule_GetPointer(capsule, "arrow_array"));
}

/* Setting up and results */

static void free_node(Node *node)
{
    free(node->slots);
    free(node->validity);
    free(node->values);
    free(node->data.at);
}

static void free_parser(Parser *parser)
{
    for (int each = 0; each < parser->node_count; each++)
        free_node(&parser->nodes[each]);
    free_node(&parser->rest);
    free_node(&parser->objects);
    free(parser->nodes);
    free(parser->events);
    free(parser->document.at);
    free(parser->text.at);
    free(parser->unknown_names.at);
    free(parser);
}

/* Return the bytes of a value of a node's kind; 0 for a node without values or offsets. */
static int width_of(const Node *node)
{
    switch (node->kind) {
    case BOOLEAN: /* a bit, but a byte is kept for it */
        return 1;
    case INTEGER:
    case FLOAT:
        return node->first / 8;
    case DECIMAL:
        return 16;
    case TIMESTAMP:
        return 8;
    default:
        return node->kind == GROUP || node->kind == STRUCT ? 0 : 4;
    }
}

static int take_node(Parser *parser, int place, const int32_t *about, const uint8_t *names, Py_ssize_t name_bytes)
{
    Node *node = &parser->nodes[place];
    const int32_t below = about[BELOW], count = about[BELOW_COUNT];
    if (about[KIND] < 0 || about[KIND] >= KINDS || about[NAME_AT] < 0 || about[NAME_BYTES] < 0
        || about[NAME_AT] > name_bytes - about[NAME_BYTES] || count < 0 || (count && below <= place)
        || below > parser->node_count - count || (about[KIND] == LIST && count != 1) || (about[KIND] == MAP && count != 2))
        return 0;
    node->kind = about[KIND];
    node->first = about[FIRST];
    node->second = about[SECOND];
    node->column = about[COLUMN];
    node->name = names + about[NAME_AT];
    node->name_bytes = about[NAME_BYTES];
    node->below = parser->nodes + below;
    node->below_count = count;
    node->width = width_of(node);
    return 1;
}

/* Return a parser for a tree; NULL with an exception. */
static Parser *make_parser(const Py_buffer *table, const Py_buffer *names, int most_levels)
{
    Parser *parser = calloc(1, sizeof *parser);
    if (!parser)
        return (Parser *)PyErr_NoMemory();
    parser->scan.most_levels = most_levels;
    memset(parser->unknown_slots, 0xFF, sizeof parser->unknown_slots);
    parser->rest.kind = STRING;
    parser->objects.kind = BOOLEAN;
    parser->rest.width = width_of(&parser->rest);
    parser->objects.width = width_of(&parser->objects);
    const Py_ssize_t count = table->len / (Py_ssize_t)(ABOUT_NODE * sizeof(int32_t));
    parser->nodes = count && count < INT32_MAX ? calloc((size_t)count, sizeof(Node)) : NULL;
    int is_whole = parser->nodes && grow(&parser->rest) && grow(&parser->objects), is_sound = count > 0;
    parser->node_count = parser->nodes ? (int)count : 0;
    for (int each = 0; each < parser->node_count && is_whole && is_sound; each++)
        is_sound = take_node(parser, each, (const int32_t *)table->buf + each * ABOUT_NODE, names->buf, names->len);
    for (int each = 0; each < parser->node_count && is_whole && is_sound; each++)
        is_whole = index_names(&parser->nodes[each]) && (parser->nodes[each].kind == GROUP || grow(&parser->nodes[each]));
    if (is_whole && is_sound)
        return parser;
    free_parser(parser);
    if (is_sound)
        return (Parser *)PyErr_NoMemory();
    PyErr_SetString(PyExc_ValueError, "a table of columns that is none");
    return NULL;
}

/* Add (node, reason, name, count, rows) to a list; return 0 with an exception. */
static int list_tally(PyObject *list, int64_t node, int reason, const uint8_t *name, int64_t bytes, const Tally *tally)
{
    if (!tally->count)
        return 1;
    PyObject *rows = PyTuple_New(tally->samples);
    for (int each = 0; rows && each < tally->samples; each++) {
        PyObject *row = PyLong_FromLongLong(tally->rows[each]);
        if (!row || PyTuple_SetItem(rows, each, row))
            Py_CLEAR(rows);
    }
    PyObject *found = rows ? Py_BuildValue("Liy#LN", (long long)node, reason, (const char *)name, (Py_ssize_t)bytes,
                                 (long long)tally->count, rows)
                           : NULL;
    const int is_added = found && !PyList_Append(list, found);
    Py_XDECREF(found);
    return is_added;
}

static PyObject *list_misfits(const Parser *parser)
{
    static const uint8_t no_name[1];
    PyObject *list = PyList_New(0);
    int is_whole = list != NULL;
    for (int each = 0; each < parser->node_count && is_whole; each++)
        for (int reason = 0; reason < REASONS && is_whole; reason++)
            is_whole = list_tally(list, each, reason, no_name, 0, &parser->nodes[each].tallies[reason]);
    for (int each = 0; each < parser->unknown_count && is_whole; each++) {
        const Unknown *unknown = &parser->unknown[each];
        const uint8_t *name = unknown->bytes ? parser->unknown_names.at + unknown->at : no_name;
        is_whole = list_tally(list, unknown->node, UNKNOWN, name, unknown->bytes, &unknown->tally);
    }
    if (is_whole && list_tally(list, -1, UNKNOWN, no_name, 0, &parser->other_unknown))
        return list;
    Py_XDECREF(list);
    return NULL;
}

/* Return whether values lie in their buffers, and are not too many bytes for offsets of 32 bits. */
static int are_sound(const void *offsets, int is_large, Py_ssize_t start, Py_ssize_t count, Py_ssize_t room)
{
    int64_t before = 0, total = 0;
    for (Py_ssize_t at = start; at <= start + count; at++) {
        const int64_t offset = is_large ? ((const int64_t *)offsets)[at] : ((const int32_t *)offsets)[at];
        if (offset < before || offset > room)
            return 0;
        total += at > start ? offset - before : 0;
        before = offset;
    }
    return total <= INT32_MAX;
}

static int read_rows(Parser *parser, const Py_buffer *in, int is_large, Py_ssize_t start, Py_ssize_t count)
{
    static const uint8_t nothing[1];
    const uint8_t *validity = in[2].len ? in[2].buf : NULL, *data = in[4].len ? in[4].buf : nothing;
    const void *offsets = in[3].buf;
    for (Py_ssize_t row = start; row < start + count; row++) {
        const int64_t from = is_large ? ((const int64_t *)offsets)[row] : ((const int32_t *)offsets)[row];
        const int64_t to = is_large ? ((const int64_t *)offsets)[row + 1] : ((const int32_t *)offsets)[row + 1];
        const int is_valid = !validity || validity[row >> 3] >> (row & 7) & 1;
        if (!read_row(parser, is_valid ? data + from : NULL, to - from))
            return 0;
    }
    return 1;
}

/* parse_documents(table, names, most levels, columns, validity, offsets, data, is large, start, count)
 *     -> (capsule, misfits)
 *
 * table: ABOUT_NODE numbers, int32, for each node; the first is the document, and nodes stand behind those above them.
 * names: of members, as UTF-8. validity: empty if there is no null. offsets: int32, or int64 if is_large. The capsule has
 * an Arrow array: a struct of the columns, the rest, and whether each value is an object. misfits: (node, reason, name,
 * count, first rows); node is -1 for unknown members above MAX_UNKNOWN. */
PyObject *parse_documents(PyObject *Py_UNUSED(self), PyObject *args)
{
    Py_buffer in[5];
    int most_levels, columns, is_large;
    Py_ssize_t start, count;
    if (!PyArg_ParseTuple(args, "y*y*iiy*y*y*pnn", &in[0], &in[1], &most_levels, &columns, &in[2], &in[3], &in[4], &is_large,
            &start, &count))
        return NULL;
    const Py_ssize_t width = is_large ? 8 : 4;
    struct ArrowArray *array = NULL;
    PyObject *misfits = NULL, *capsule = NULL;
    int is_sound = start >= 0 && count >= 0 && start < PY_SSIZE_T_MAX - count && in[3].len / width > start + count
        && (!in[2].len || in[2].len >= (start + count + 7) / 8) && most_levels > 0 && most_levels <= LEVELS
        && are_sound(in[3].buf, is_large, start, count, in[4].len);
    Parser *parser = is_sound ? make_parser(&in[0], &in[1], most_levels) : NULL;
    if (parser) {
        int is_whole;
        Py_BEGIN_ALLOW_THREADS
        is_whole = read_rows(parser, in, is_large, start, count) && fill_all(parser, parser->nodes, count)
            && (array = take_columns(parser, columns));
        Py_END_ALLOW_THREADS
        if (!is_whole)
            PyErr_NoMemory();
        else if (array->n_children != columns + 2)
            PyErr_SetString(PyExc_ValueError, "a table of columns that is none");
        else if ((misfits = list_misfits(parser)) && (capsule = PyCapsule_New(array, "arrow_array", free_capsule)))
            array = NULL; /* the capsule has it */
        free_array(array);
        free_parser(parser);
    }
    for (int each = 0; each < 5; each++)
        PyBuffer_Release(&in[each]);
    if (!is_sound)
        PyErr_SetString(PyExc_ValueError, "a place outside of its buffer, or too many bytes");
    if (!capsule) {
        Py_XDECREF(misfits);
        return NULL;
    }
    return Py_BuildValue("NN", capsule, misfits);
}
