/* The record batch codec, a second time: sections from columns, and columns or records from sections.
 *
 * Optional. Whatever is here is also written in Python, which is what the bytes must be and what reads the
 * bytes that are not understood here: each function returns None for input that it cannot vouch for, and its
 * caller goes the other way. So no error is described here, and both readers refuse the same bytes [CLI-70].
 *
 * Nothing in the input is believed: each number is read within its record, each length is compared with what
 * is left before it is used, and what a first pass counted is what a second pass writes.
 *
 * Source: the format is in protocol/records/record.py; Kafka's protocol guide, "Record"; docs/adr/0005.
 */
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* Raised whenever a function's arguments or results change; protocol/records/native.py asks for its own. */
#define INTERFACE 1

typedef const uint8_t *Bytes;

#define NULL_RAW 1 /* zigzag of -1 */
#define HEADERS_MAX 10000 /* kernel/limits.py: HEADERS_PER_RECORD_MAX */

/* "Not by me", which is no error; but memory that ran out is one. */
static PyObject *none(void) {
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_MemoryError)) return NULL;
    PyErr_Clear();
    Py_RETURN_NONE;
}

/* ------------------------------------------------------------------------------------------- numbers */

static uint64_t zigzag(int64_t number) { return ((uint64_t)number << 1) ^ (uint64_t)(number >> 63); }

static int64_t unzigzag(uint64_t raw) { return (int64_t)(raw >> 1) ^ -(int64_t)(raw & 1); }

static int width(uint64_t raw) {
    int bytes = 1;
    while (raw >>= 7) bytes++;
    return bytes;
}

static uint8_t *put(uint8_t *at, uint64_t raw) {
    while (raw > 0x7F) {
        *at++ = (uint8_t)(raw | 0x80);
        raw >>= 7;
    }
    *at++ = (uint8_t)raw;
    return at;
}

/* The varint at `*at`, which must end before `limit` and fit 64 bits. */
static int take(Bytes *at, Bytes limit, uint64_t *raw) {
    Bytes p = *at;
    uint64_t sum = 0;
    for (int shift = 0; p < limit && shift < 70; shift += 7) {
        uint8_t byte = *p++;
        if (shift == 63 && byte > 1) return 0;
        sum |= (uint64_t)(byte & 0x7F) << shift;
        if (byte <= 0x7F) {
            *at = p;
            *raw = sum;
            return 1;
        }
    }
    return 0;
}

/* A length and the text it announces; -1 and no text for null. */
static int take_text(Bytes *at, Bytes limit, Bytes *text, Py_ssize_t *size) {
    uint64_t raw;
    if (!take(at, limit, &raw)) return 0;
    *text = *at;
    *size = -1;
    if (raw & 1) return 1;
    if (raw >> 1 > (uint64_t)(limit - *at)) return 0;
    *size = (Py_ssize_t)(raw >> 1);
    *at += *size;
    return 1;
}

/* ------------------------------------------------------------------------------------------- columns
 *
 * A column is a list of bytes and None, or the buffers of an Arrow array of large_binary, as a tuple
 * (validity or None, offsets, data or None, place of the first element).
 */
typedef struct {
    PyObject *list;
    Py_buffer validity, offsets, data;
    Py_ssize_t first;
} Column;

static int open_buffer(PyObject *given, Py_buffer *view) {
    view->buf = NULL;
    view->obj = NULL;
    view->len = 0;
    return given == Py_None || PyObject_GetBuffer(given, view, PyBUF_SIMPLE) == 0;
}

static void close_column(Column *column) {
    PyBuffer_Release(&column->validity);
    PyBuffer_Release(&column->offsets);
    PyBuffer_Release(&column->data);
}

/* Whether the buffers hold `count` elements; of a list every element is asked when it is read. */
static int open_column(PyObject *given, Py_ssize_t count, Column *column) {
    memset(column, 0, sizeof *column);
    if (PyList_Check(given)) {
        column->list = given;
        return PyList_Size(given) == count;
    }
    PyObject *validity, *offsets, *data;
    if (!PyTuple_Check(given) ||
        !PyArg_ParseTuple(given, "OOOn", &validity, &offsets, &data, &column->first) ||
        !open_buffer(validity, &column->validity) || !open_buffer(offsets, &column->offsets) ||
        !open_buffer(data, &column->data))
        return 0;
    if (column->first < 0 || count < 0 || column->first > INT64_MAX / 32 || count > INT64_MAX / 32) return 0;
    Py_ssize_t end = column->first + count;
    return column->offsets.len / 8 > end &&
           (column->validity.buf == NULL || column->validity.len > (end - 1) / 8);
}

/* The text at a place, size -1 for null. False for what is neither. */
static int text_at(const Column *column, Py_ssize_t place, Bytes *text, Py_ssize_t *size) {
    if (column->list) {
        PyObject *item = PyList_GetItem(column->list, place);
        *size = -1;
        if (item == Py_None) return 1;
        if (item == NULL || !PyBytes_CheckExact(item)) return 0;
        *text = (Bytes)PyBytes_AsString(item);
        *size = PyBytes_Size(item);
        return 1;
    }
    Py_ssize_t at = column->first + place;
    Bytes valid = column->validity.buf;
    *size = -1;
    if (valid && !(valid[at >> 3] >> (at & 7) & 1)) return 1;
    int64_t bounds[2];
    memcpy(bounds, (const char *)column->offsets.buf + at * 8, sizeof bounds);
    if (bounds[0] < 0 || bounds[1] < bounds[0] || bounds[1] > column->data.len) return 0;
    *text = (Bytes)column->data.buf + bounds[0];
    *size = (Py_ssize_t)(bounds[1] - bounds[0]);
    return 1;
}

/* ------------------------------------------------------------------------------------------ encoding */

typedef struct {
    Py_ssize_t begin;
    int64_t ms;
} Run;

typedef struct {
    Py_ssize_t count, runs;
    Run *run;
    const Column *keys, *values, *tails;
} Rows;

static Run *runs_of(PyObject *given, Py_ssize_t *count) {
    if (!PyList_Check(given) || (*count = PyList_Size(given)) < 1) return NULL;
    Run *runs = PyMem_Malloc((size_t)*count * sizeof *runs);
    for (Py_ssize_t i = 0; runs && i < *count; i++) {
        PyObject *pair = PyList_GetItem(given, i);
        long long ms;
        if (!PyTuple_Check(pair) || !PyArg_ParseTuple(pair, "nL", &runs[i].begin, &ms)) {
            PyMem_Free(runs);
            return NULL;
        }
        runs[i].ms = ms;
    }
    return runs;
}

static uint8_t *put_text(uint8_t *at, Bytes text, Py_ssize_t size) {
    if (size < 0) return put(at, NULL_RAW);
    at = put(at, (uint64_t)size << 1);
    if (size) memcpy(at, text, (size_t)size);
    return at + size;
}

static Py_ssize_t text_size(Py_ssize_t size) { return size < 0 ? 1 : width((uint64_t)size << 1) + size; }

/* Writes the records to `at` if there is room up to `limit`, counts their bytes if `at` is NULL; -1 for a
 * column that is not what it should be. A list may have changed in between: the room is compared again. */
static Py_ssize_t put_records(const Rows *rows, uint8_t *at, Py_ssize_t room) {
    Py_ssize_t total = 0, run = 0;
    for (Py_ssize_t i = 0; i < rows->count; i++) {
        Bytes key = NULL, value = NULL, tail = (Bytes)"";
        Py_ssize_t key_size = -1, value_size = -1, tail_size = 1;
        if ((rows->keys && !text_at(rows->keys, i, &key, &key_size)) ||
            !text_at(rows->values, i, &value, &value_size) ||
            (rows->tails && (!text_at(rows->tails, i, &tail, &tail_size) || tail_size < 1)))
            return -1;
        while (run + 1 < rows->runs && rows->run[run + 1].begin <= i) run++;
        uint64_t when = zigzag((int64_t)((uint64_t)rows->run[run].ms - (uint64_t)rows->run[0].ms));
        uint64_t where = zigzag(i);
        Py_ssize_t body = 1 + width(when) + width(where) + tail_size;
        if (key_size > INT32_MAX || value_size > INT32_MAX || tail_size > INT32_MAX) return -1;
        body += text_size(key_size) + text_size(value_size);
        Py_ssize_t whole = width((uint64_t)body << 1) + body;
        if (whole > INT32_MAX - total) return -1;
        total += whole;
        if (!at) continue;
        if (total > room) return -1;
        at = put(at, (uint64_t)body << 1);
        *at++ = 0;
        at = put(put(at, when), where);
        at = put_text(put_text(at, key, key_size), value, value_size);
        memcpy(at, tail, (size_t)tail_size);
        at += tail_size;
    }
    return total;
}

/* encode(count, runs, values, keys or None, tails or None) -> the section, or None. */
static PyObject *encode(PyObject *module, PyObject *args) {
    Rows rows = {0};
    PyObject *given_runs, *given[3], *section = NULL;
    Column columns[3];
    memset(columns, 0, sizeof columns);
    if (!PyArg_ParseTuple(args, "nOOOO", &rows.count, &given_runs, &given[0], &given[1], &given[2]))
        return NULL;
    rows.run = runs_of(given_runs, &rows.runs);
    int good = rows.run != NULL, lists = 0;
    for (int i = 0; i < 3 && good; i++)
        if (given[i] != Py_None) {
            good = open_column(given[i], rows.count, &columns[i]);
            lists |= columns[i].list != NULL;
        }
    if (good && given[0] != Py_None) {
        rows.values = &columns[0];
        rows.keys = given[1] == Py_None ? NULL : &columns[1];
        rows.tails = given[2] == Py_None ? NULL : &columns[2];
        PyThreadState *others = lists ? NULL : PyEval_SaveThread();
        Py_ssize_t size = put_records(&rows, NULL, 0);
        if (others) PyEval_RestoreThread(others);
        if (size >= 0) section = PyBytes_FromStringAndSize(NULL, size);
        if (section) {
            uint8_t *at = (uint8_t *)PyBytes_AsString(section);
            others = lists ? NULL : PyEval_SaveThread();
            Py_ssize_t written = put_records(&rows, at, size);
            if (others) PyEval_RestoreThread(others);
            if (written != size) Py_CLEAR(section);
        }
    }
    for (int i = 0; i < 3; i++) close_column(&columns[i]);
    PyMem_Free(rows.run);
    return section ? section : none();
}

/* ----------------------------------------------------------------------------------------- partitions */

/* Kafka's Utils.murmur2. */
static uint32_t murmur2(Bytes key, Py_ssize_t size) {
    const uint32_t m = 0x5BD1E995;
    uint32_t h = 0x9747B28CU ^ (uint32_t)size;
    for (; size >= 4; key += 4, size -= 4) {
        uint32_t k = key[0] | (uint32_t)key[1] << 8 | (uint32_t)key[2] << 16 | (uint32_t)key[3] << 24;
        k *= m;
        h = h * m ^ (k ^ k >> 24) * m;
    }
    if (size) {
        if (size > 2) h ^= (uint32_t)key[2] << 16;
        if (size > 1) h ^= (uint32_t)key[1] << 8;
        h = (h ^ key[0]) * m;
    }
    h = (h ^ h >> 13) * m;
    return h ^ h >> 15;
}

/* partitions(count, keys, partitions) -> an int32 for each key, -1 for null; or None. */
static PyObject *partitions(PyObject *module, PyObject *args) {
    Py_ssize_t count;
    unsigned int number;
    PyObject *given, *made = NULL;
    Column keys;
    if (!PyArg_ParseTuple(args, "nOI", &count, &given, &number)) return NULL;
    if (open_column(given, count, &keys) && number && number <= INT32_MAX)
        made = PyBytes_FromStringAndSize(NULL, count * 4);
    char *at = made ? PyBytes_AsString(made) : NULL;
    for (Py_ssize_t i = 0; made && i < count; i++) {
        Bytes key;
        Py_ssize_t size;
        if (!text_at(&keys, i, &key, &size)) {
            Py_CLEAR(made);
            break;
        }
        int32_t where = size < 0 ? -1 : (int32_t)((murmur2(key, size) & INT32_MAX) % number);
        memcpy(at + i * 4, &where, 4);
    }
    close_column(&keys);
    return made ? made : none();
}

/* partition_of(key, partitions) -> the partition of one key. */
static PyObject *partition_of(PyObject *module, PyObject *args) {
    PyObject *key;
    unsigned int number;
    if (!PyArg_ParseTuple(args, "SI", &key, &number)) return NULL;
    if (!number) {
        PyErr_SetString(PyExc_ZeroDivisionError, "a topic has partitions");
        return NULL;
    }
    uint32_t hash = murmur2((Bytes)PyBytes_AsString(key), PyBytes_Size(key));
    return PyLong_FromUnsignedLong((hash & INT32_MAX) % number);
}

/* ------------------------------------------------------------------------------------------- decoding */

/* A section, and how far it has been read. */
typedef struct {
    Bytes at, limit;
    int64_t base_offset, base_time, fixed_time, last_delta, previous;
    Py_ssize_t count;
    int fixed;
} Reader;

typedef struct {
    int64_t offset, time;
    Bytes key, value, headers, end;
    Py_ssize_t key_size, value_size, header_count;
} Record;

typedef struct {
    Bytes name, value;
    Py_ssize_t name_size, value_size;
} Header;

/* The next header; the caller has counted them. */
static int next_header(Bytes *at, Bytes end, Header *header) {
    return take_text(at, end, &header->name, &header->name_size) && header->name_size >= 0 &&
           take_text(at, end, &header->value, &header->value_size);
}

/* The next record, headers and all: as `walk` and `decode_headers` of protocol/records/record.py. */
static int next_record(Reader *reader, Record *record) {
    uint64_t raw, count;
    if (!take(&reader->at, reader->limit, &raw) || raw & 1 ||
        raw >> 1 > (uint64_t)(reader->limit - reader->at))
        return 0;
    Bytes at = reader->at, end = at + (raw >> 1);
    if (at == end) return 0;
    at++; /* attributes */
    if (!take(&at, end, &raw)) return 0;
    /* Java's addition wraps, and so does this one. */
    record->time = (int64_t)((uint64_t)reader->base_time + (uint64_t)unzigzag(raw));
    if (reader->fixed) record->time = reader->fixed_time;
    if (!take(&at, end, &raw) || raw & 1) return 0;
    int64_t delta = (int64_t)(raw >> 1);
    if (delta <= reader->previous || delta > reader->last_delta) return 0;
    reader->previous = delta;
    record->offset = reader->base_offset + delta;
    if (!take_text(&at, end, &record->key, &record->key_size) ||
        !take_text(&at, end, &record->value, &record->value_size) || !take(&at, end, &raw) || raw & 1)
        return 0;
    count = raw >> 1;
    if (count > HEADERS_MAX || count > (uint64_t)(end - at) / 2) return 0;
    record->headers = at;
    record->header_count = (Py_ssize_t)count;
    for (Header header; count; count--)
        if (!next_header(&at, end, &header)) return 0;
    record->end = reader->at = end;
    return at == end;
}

/* Reads (section, base offset, base time, fixed time or None, records, last offset delta). */
static int open_reader(PyObject *section, PyObject *batch, Reader *reader) {
    long long base_offset, base_time, last_delta;
    PyObject *fixed;
    if (!PyBytes_Check(section) || !PyTuple_Check(batch) ||
        !PyArg_ParseTuple(batch, "LLOnL", &base_offset, &base_time, &fixed, &reader->count, &last_delta))
        return 0;
    reader->at = (Bytes)PyBytes_AsString(section);
    reader->limit = reader->at + PyBytes_Size(section);
    reader->base_offset = base_offset;
    reader->base_time = base_time;
    reader->last_delta = last_delta;
    reader->previous = -1;
    reader->fixed = fixed != Py_None;
    reader->fixed_time = reader->fixed ? PyLong_AsLongLong(fixed) : 0;
    /* A record has seven bytes or more; an offset fits its type. */
    return !PyErr_Occurred() && last_delta >= 0 && base_offset <= INT64_MAX - last_delta &&
           reader->count >= 0 && reader->count <= (reader->limit - reader->at) / 7;
}

static PyObject *text_or_none(Bytes text, Py_ssize_t size) {
    if (size >= 0) return PyBytes_FromStringAndSize((const char *)text, size);
    return Py_NewRef(Py_None);
}

static PyObject *headers_of(const Record *record) {
    PyObject *headers = PyTuple_New(record->header_count);
    Bytes at = record->headers;
    for (Py_ssize_t i = 0; headers && i < record->header_count; i++) {
        Header header = {0};
        next_header(&at, record->end, &header);
        PyObject *pair = PyTuple_New(2);
        PyObject *key = PyUnicode_DecodeUTF8((const char *)header.name, header.name_size, "replace");
        PyObject *content = text_or_none(header.value, header.value_size);
        if (!pair || !key || !content) {
            Py_XDECREF(pair);
            Py_XDECREF(key);
            Py_XDECREF(content);
            Py_CLEAR(headers);
            break;
        }
        PyTuple_SetItem(pair, 0, key);
        PyTuple_SetItem(pair, 1, content);
        PyTuple_SetItem(headers, i, pair);
    }
    return headers;
}

#define FIELDS 9
enum { TOPIC, PARTITION, OFFSET, TIME, TIME_TYPE, KEY, VALUE, HEADERS, EPOCH };

/* records(section, batch, record type, (topic, partition, time type, leader epoch)) -> a list, or None.
 *
 * The type is ConsumerRecord, a tuple of nine. Nothing in a record can lead back to it, so the collector of
 * cycles has nothing to find in one and is spared the search, as it is in tuples of texts and numbers. */
static PyObject *records(PyObject *module, PyObject *args) {
    PyObject *section, *batch, *type, *topic, *partition, *time_type, *epoch, *list = NULL, *time = NULL;
    Reader reader;
    Record record;
    int64_t last_time = 0;
    if (!PyArg_ParseTuple(args, "OOO!(OOOO)", &section, &batch, &PyType_Type, &type, &topic, &partition,
                          &time_type, &epoch))
        return NULL;
    if (!PyType_IsSubtype((PyTypeObject *)type, &PyTuple_Type)) {
        PyErr_SetString(PyExc_TypeError, "records are tuples");
        return NULL;
    }
    if (open_reader(section, batch, &reader)) list = PyList_New(reader.count);
    for (Py_ssize_t i = 0; list && i < reader.count; i++) {
        PyObject *made = NULL;
        if (!next_record(&reader, &record) || !(made = PyType_GenericAlloc((PyTypeObject *)type, FIELDS))) {
            Py_CLEAR(list);
            break;
        }
        PyObject_GC_UnTrack(made);
        if (!time || record.time != last_time) {
            Py_XDECREF(time);
            time = PyLong_FromLongLong(last_time = record.time);
        }
        PyObject *own[4] = {
            PyLong_FromLongLong(record.offset),
            text_or_none(record.key, record.key_size),
            text_or_none(record.value, record.value_size),
            headers_of(&record),
        };
        PyTuple_SetItem(made, TOPIC, Py_NewRef(topic));
        PyTuple_SetItem(made, PARTITION, Py_NewRef(partition));
        PyTuple_SetItem(made, OFFSET, own[0]);
        PyTuple_SetItem(made, TIME, Py_XNewRef(time));
        PyTuple_SetItem(made, TIME_TYPE, Py_NewRef(time_type));
        PyTuple_SetItem(made, KEY, own[1]);
        PyTuple_SetItem(made, VALUE, own[2]);
        PyTuple_SetItem(made, HEADERS, own[3]);
        PyTuple_SetItem(made, EPOCH, Py_NewRef(epoch));
        PyList_SetItem(list, i, made);
        if (!time || !own[0] || !own[1] || !own[2] || !own[3]) Py_CLEAR(list);
    }
    Py_XDECREF(time);
    if (list && reader.at == reader.limit) return list;
    Py_XDECREF(list);
    return none();
}

/* ---------------------------------------------------------------------------------- columns, decoded */

/* The buffers of an Arrow array of binary: counted first, then made, then filled. */
typedef struct {
    Py_ssize_t count, nulls;
    int64_t bytes;
    PyObject *validity, *offsets, *data;
    uint8_t *bits, *at;
    int32_t *bound;
} Texts;

static void count_text(Texts *texts, Py_ssize_t size) {
    texts->count++;
    if (size < 0)
        texts->nulls++;
    else
        texts->bytes += size;
}

static int make_texts(Texts *texts) {
    if (texts->bytes > INT32_MAX || texts->count > INT32_MAX - 8) return 0;
    texts->validity = PyBytes_FromStringAndSize(NULL, (texts->count + 7) / 8);
    texts->offsets = PyBytes_FromStringAndSize(NULL, (texts->count + 1) * 4);
    texts->data = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)texts->bytes);
    if (!texts->validity || !texts->offsets || !texts->data) return 0;
    texts->bits = (uint8_t *)PyBytes_AsString(texts->validity);
    texts->bound = (int32_t *)PyBytes_AsString(texts->offsets);
    texts->at = (uint8_t *)PyBytes_AsString(texts->data);
    memset(texts->bits, 0, (size_t)(texts->count + 7) / 8);
    texts->bound[0] = 0;
    texts->count = 0;
    return 1;
}

static void put_into(Texts *texts, Bytes text, Py_ssize_t size) {
    Py_ssize_t place = texts->count++;
    texts->bound[place + 1] = texts->bound[place];
    if (size < 0) return;
    texts->bits[place >> 3] |= (uint8_t)(1 << (place & 7));
    if (size) memcpy(texts->at, text, (size_t)size);
    texts->at += size;
    texts->bound[place + 1] += (int32_t)size;
}

static void drop_texts(Texts *texts) {
    Py_CLEAR(texts->validity);
    Py_CLEAR(texts->offsets);
    Py_CLEAR(texts->data);
}

/* A batch, and the least offset that is wanted of it. */
typedef struct {
    Reader reader;
    long long from;
    Bytes topic;
    Py_ssize_t topic_size;
    int partition, time_type;
} Part;

enum { OF_TOPIC, OF_KEY, OF_VALUE, OF_NAME, OF_CONTENT, TEXTS };
enum { OFFSETS, TIMES, PARTITIONS, TIME_TYPES, LISTS, NUMBERS };
static const int number_size[NUMBERS] = {8, 8, 4, 4, 4};

typedef struct {
    Py_ssize_t most, rows, left, headers;
    Texts texts[TEXTS];
    PyObject *made[NUMBERS];
    char *number[NUMBERS];
} Table;

static void put_numbers(Table *table, const Part *part, const Record *record) {
    int32_t lists = (int32_t)(table->headers + record->header_count);
    memcpy(table->number[OFFSETS] + table->rows * 8, &record->offset, 8);
    memcpy(table->number[TIMES] + table->rows * 8, &record->time, 8);
    memcpy(table->number[PARTITIONS] + table->rows * 4, &part->partition, 4);
    memcpy(table->number[TIME_TYPES] + table->rows * 4, &part->time_type, 4);
    memcpy(table->number[LISTS] + (table->rows + 1) * 4, &lists, 4);
}

static void add_row(Table *table, const Part *part, const Record *record, int fill) {
    Bytes text[3] = {part->topic, record->key, record->value}, at = record->headers;
    Py_ssize_t size[3] = {part->topic_size, record->key_size, record->value_size};
    if (fill) put_numbers(table, part, record);
    for (int i = 0; i < 3; i++)
        fill ? put_into(&table->texts[i], text[i], size[i]) : count_text(&table->texts[i], size[i]);
    for (Py_ssize_t i = 0; i < record->header_count; i++) {
        Header header = {0};
        next_header(&at, record->end, &header);
        if (fill) {
            put_into(&table->texts[OF_NAME], header.name, header.name_size);
            put_into(&table->texts[OF_CONTENT], header.value, header.value_size);
        } else {
            count_text(&table->texts[OF_NAME], header.name_size);
            count_text(&table->texts[OF_CONTENT], header.value_size);
        }
    }
    table->headers += record->header_count;
    table->rows++;
}

/* One pass over all parts; every record is read to the end of its section, wanted or not. */
static int pass(Table *table, const Part *parts, Py_ssize_t count, int fill) {
    Record record;
    table->rows = table->left = table->headers = 0;
    for (Py_ssize_t p = 0; p < count; p++) {
        Reader reader = parts[p].reader;
        for (Py_ssize_t i = 0; i < reader.count; i++) {
            if (!next_record(&reader, &record)) return 0;
            if (record.offset < parts[p].from) continue;
            if (table->rows == table->most)
                table->left++;
            else
                add_row(table, &parts[p], &record, fill);
        }
        if (reader.at != reader.limit) return 0;
    }
    return 1;
}

static int make_table(Table *table) {
    if (table->rows > INT32_MAX - 8) return 0;
    for (int i = 0; i < TEXTS; i++)
        if (!make_texts(&table->texts[i])) return 0;
    for (int i = 0; i < NUMBERS; i++) {
        table->made[i] = PyBytes_FromStringAndSize(NULL, (table->rows + 1) * number_size[i]);
        if (!table->made[i]) return 0;
        table->number[i] = PyBytes_AsString(table->made[i]);
        memset(table->number[i] + (i == LISTS ? 0 : table->rows * number_size[i]), 0, number_size[i]);
    }
    return 1;
}

static PyObject *texts_result(const Texts *texts) {
    return Py_BuildValue("(nOOO)", texts->count, texts->nulls ? texts->validity : Py_None, texts->offsets,
                         texts->data);
}

static PyObject *table_result(const Table *table) {
    PyObject *texts[TEXTS], *result = NULL;
    int whole = 1;
    for (int i = 0; i < TEXTS; i++) whole &= (texts[i] = texts_result(&table->texts[i])) != NULL;
    if (whole)
        result = Py_BuildValue("nn(OOOOO)(OOOOO)", table->rows, table->left, table->made[OFFSETS],
                               table->made[TIMES], table->made[PARTITIONS], table->made[TIME_TYPES],
                               table->made[LISTS], texts[0], texts[1], texts[2], texts[3], texts[4]);
    for (int i = 0; i < TEXTS; i++) Py_XDECREF(texts[i]);
    return result;
}

/* columns(parts, most) -> (rows, rows beyond `most`, numbers, texts), or None.
 *
 * A part is (section, batch, topic, partition, time type, first offset wanted). The numbers are buffers of
 * offsets, times, partitions, time types and the bounds of header lists; the texts are (length, validity or
 * None, offsets, data) of topic, key, value, header name and header value. */
static PyObject *columns(PyObject *module, PyObject *args) {
    PyObject *given, *result = NULL;
    Table table;
    memset(&table, 0, sizeof table);
    if (!PyArg_ParseTuple(args, "O!n", &PyList_Type, &given, &table.most)) return NULL;
    given = PyList_AsTuple(given); /* nobody can change that meanwhile */
    if (!given) return NULL;
    Py_ssize_t count = PyTuple_Size(given);
    Part *parts = PyMem_Calloc((size_t)count + 1, sizeof *parts);
    int good = parts != NULL && table.most >= 0;
    for (Py_ssize_t p = 0; good && p < count; p++) {
        PyObject *section, *batch, *topic, *entry = PyTuple_GetItem(given, p);
        good = PyTuple_Check(entry) &&
               PyArg_ParseTuple(entry, "OOSiiL", &section, &batch, &topic, &parts[p].partition,
                                &parts[p].time_type, &parts[p].from) &&
               open_reader(section, batch, &parts[p].reader);
        if (!good) break;
        parts[p].topic = (Bytes)PyBytes_AsString(topic);
        parts[p].topic_size = PyBytes_Size(topic);
    }
    for (int fill = 0; good && fill < 2; fill++) {
        good = !fill || make_table(&table);
        if (!good) break;
        PyThreadState *others = PyEval_SaveThread();
        good = pass(&table, parts, count, fill);
        PyEval_RestoreThread(others);
    }
    if (good) result = table_result(&table);
    for (int i = 0; i < TEXTS; i++) drop_texts(&table.texts[i]);
    for (int i = 0; i < NUMBERS; i++) Py_CLEAR(table.made[i]);
    PyMem_Free(parts);
    Py_DECREF(given);
    return result ? result : none();
}

/* ------------------------------------------------------------------------------------------- scanning */

#define NAMED_MAX 64

/* scan(section, batch, earliest, latest, most) -> (records without a key, the first of them, the first records
 * with a time of 0 and later that is not within the bounds, and their times), or None where a record cannot be
 * read. Others may run meanwhile: the section is bytes, which nobody changes. */
static PyObject *scan(PyObject *module, PyObject *args) {
    PyObject *section, *batch;
    long long earliest, latest;
    Py_ssize_t most, keyless = 0, late = 0, done = 0;
    Py_ssize_t keyless_at[NAMED_MAX], late_at[NAMED_MAX];
    int64_t late_time[NAMED_MAX];
    Reader reader;
    Record record;
    if (!PyArg_ParseTuple(args, "OOLLn", &section, &batch, &earliest, &latest, &most)) return NULL;
    if (most < 0 || most > NAMED_MAX || !open_reader(section, batch, &reader)) return none();
    Py_BEGIN_ALLOW_THREADS
    while (done < reader.count && next_record(&reader, &record)) {
        if (record.key_size < 0 && keyless++ < most) keyless_at[keyless - 1] = done;
        if (record.time >= 0 && (record.time < earliest || record.time > latest) && late < most) {
            late_at[late] = done;
            late_time[late++] = record.time;
        }
        done++;
    }
    Py_END_ALLOW_THREADS
    if (done < reader.count || reader.at != reader.limit) return none();
    Py_ssize_t named = keyless < most ? keyless : most;
    PyObject *first = PyTuple_New(named), *times = PyTuple_New(late);
    for (Py_ssize_t i = 0; first && times && i < named; i++) {
        PyObject *index = PyLong_FromSsize_t(keyless_at[i]);
        if (!index) Py_CLEAR(first);
        else PyTuple_SetItem(first, i, index);
    }
    for (Py_ssize_t i = 0; first && times && i < late; i++) {
        PyObject *pair = Py_BuildValue("(nL)", late_at[i], (long long)late_time[i]);
        if (!pair) Py_CLEAR(times);
        else PyTuple_SetItem(times, i, pair);
    }
    PyObject *result = first && times ? Py_BuildValue("(nOO)", keyless, first, times) : NULL;
    Py_XDECREF(first);
    Py_XDECREF(times);
    return result ? result : none();
}

/* -------------------------------------------------------------------------------------------- module */

static PyMethodDef methods[] = {
    {"encode", encode, METH_VARARGS, "encode(count, runs, values, keys, tails) -> bytes | None"},
    {"partitions", partitions, METH_VARARGS, "partitions(count, keys, partitions) -> bytes | None"},
    {"partition_of", partition_of, METH_VARARGS, "partition_of(key, partitions) -> int"},
    {"records", records, METH_VARARGS, "records(section, batch, type, origin) -> list | None"},
    {"columns", columns, METH_VARARGS, "columns(parts, most) -> tuple | None"},
    {"scan", scan, METH_VARARGS, "scan(section, batch, earliest, latest, most) -> tuple | None"},
    {NULL, NULL, 0, NULL},
};

static int execute(PyObject *module) { return PyModule_AddIntConstant(module, "INTERFACE", INTERFACE); }

static PyModuleDef_Slot slots[] = {{Py_mod_exec, execute}, {0, NULL}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "tallystick._native", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
