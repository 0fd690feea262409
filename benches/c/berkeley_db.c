/* Berkeley DB under random inserts and deletes, each a durable transaction.
 *
 *     berkeley_db DIRECTORY btree|hash RECORDS
 *
 * Makes a database with every second key below twice RECORDS, and writes `ready`. Answers each line of its input, a number of milliseconds, with the
 * seconds and the transactions of a run of that time, in which an insert of an absent key and a delete of a present one take turns.
 * At the end of the input it compares all keys with its own list, and writes `exact`. */

#include <db.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { VALUE_BYTES = 100, CACHE_BYTES = 16 << 20, LOADED_AT_ONCE = 1000 };

static void check(int result, const char *what) {
    if (result != 0) {
        fprintf(stderr, "%s: %s\n", what, db_strerror(result));
        exit(1);
    }
}

static double now(void) {
    struct timespec time;
    if (clock_gettime(CLOCK_MONOTONIC, &time) != 0)
        abort();
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static uint64_t state = 88172645463325252;

/* xorshift64 */
static uint64_t random_below(uint64_t limit) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % limit;
}

static DB_ENV *env;
static DB *db;

static DBT dbt(void *data, size_t bytes) {
    DBT dbt;
    memset(&dbt, 0, sizeof dbt);
    dbt.data = data;
    dbt.size = (u_int32_t)bytes;
    return dbt;
}

/* The value of a key: random, so that no device compresses it. */
static void value_of(uint64_t number, char *bytes) {
    uint64_t word = number * 0x9e3779b97f4a7c15 + 1;
    for (size_t i = 0; i < VALUE_BYTES; i++) {
        word = word * 6364136223846793005 + 1442695040888963407;
        bytes[i] = (char)(word >> 56);
    }
}

static void put(DB_TXN *txn, uint64_t number) {
    char bytes[VALUE_BYTES];
    value_of(number, bytes);
    DBT key = dbt(&number, sizeof number), value = dbt(bytes, sizeof bytes);
    check(db->put(db, txn, &key, &value, DB_NOOVERWRITE), "put");
}

static void make(const char *directory, DBTYPE type) {
    check(db_env_create(&env, 0), "db_env_create");
    check(env->set_cachesize(env, 0, CACHE_BYTES, 1), "set_cachesize");
    /* A transaction of the load has more locks than the default allows. */
    check(env->set_lk_max_locks(env, 100000), "set_lk_max_locks");
    check(env->set_lk_max_objects(env, 100000), "set_lk_max_objects");
    check(env->log_set_config(env, DB_LOG_AUTO_REMOVE, 1), "log_set_config");
    u_int32_t flags = DB_CREATE | DB_INIT_MPOOL | DB_INIT_TXN | DB_INIT_LOG | DB_INIT_LOCK | DB_PRIVATE;
    check(env->open(env, directory, flags, 0600), "env->open");
    check(db_create(&db, env, 0), "db_create");
    check(db->open(db, NULL, "data", NULL, type, DB_CREATE | DB_AUTO_COMMIT, 0600), "db->open");
}

static void load(uint64_t records, bool *is_there) {
    for (uint64_t i = 0; i < records;) {
        DB_TXN *txn;
        check(env->txn_begin(env, NULL, &txn, DB_TXN_NOSYNC), "txn_begin");
        for (uint64_t end = i + LOADED_AT_ONCE; i < end && i < records; i++) {
            put(txn, 2 * i);
            is_there[2 * i] = true;
        }
        check(txn->commit(txn, 0), "commit");
    }
    check(env->txn_checkpoint(env, 0, 0, DB_FORCE), "txn_checkpoint");
}

/* A random key that is in the database, or is not. */
static uint64_t random_key(uint64_t count, const bool *is_there, bool wanted) {
    uint64_t key;
    do
        key = random_below(count);
    while (is_there[key] != wanted);
    return key;
}

static void run(long milliseconds, uint64_t count, bool *is_there) {
    double begin = now(), end = begin + (double)milliseconds * 1e-3;
    uint64_t done = 0;
    for (; now() < end; done++) {
        bool inserts = done % 2 == 0;
        uint64_t number = random_key(count, is_there, !inserts);
        DB_TXN *txn;
        check(env->txn_begin(env, NULL, &txn, 0), "txn_begin");
        if (inserts) {
            put(txn, number);
        } else {
            DBT key = dbt(&number, sizeof number);
            check(db->del(db, txn, &key, 0), "del");
        }
        check(txn->commit(txn, DB_TXN_SYNC), "commit");
        is_there[number] = inserts;
    }
    printf("%f %" PRIu64 "\n", now() - begin, done);
    fflush(stdout);
}

static void compare(uint64_t count, const bool *is_there) {
    uint64_t expected = 0, found = 0;
    for (uint64_t i = 0; i < count; i++)
        expected += is_there[i];
    DBC *cursor;
    check(db->cursor(db, NULL, &cursor, 0), "cursor");
    DBT key = dbt(NULL, 0), value = dbt(NULL, 0);
    int result;
    while ((result = cursor->get(cursor, &key, &value, DB_NEXT)) == 0) {
        uint64_t number = count;
        if (key.size == sizeof number)
            memcpy(&number, key.data, sizeof number);
        char expected_value[VALUE_BYTES];
        value_of(number, expected_value);
        bool is_right = number < count && is_there[number] && value.size == VALUE_BYTES
            && memcmp(value.data, expected_value, VALUE_BYTES) == 0;
        if (!is_right) {
            printf("a wrong record %" PRIu64 "\n", number);
            exit(1);
        }
        found++;
    }
    check(result == DB_NOTFOUND ? 0 : result, "get");
    check(cursor->close(cursor), "close");
    if (found == expected)
        printf("exact\n");
    else
        printf("%" PRIu64 " records in place of %" PRIu64 "\n", found, expected);
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    uint64_t records = strtoull(argv[3], NULL, 10), count = 2 * records;
    bool *is_there = calloc(count, sizeof *is_there);
    if (is_there == NULL || records == 0)
        return 2;
    make(argv[1], strcmp(argv[2], "hash") == 0 ? DB_HASH : DB_BTREE);
    load(records, is_there);
    printf("ready\n");
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin) != NULL)
        run(strtol(line, NULL, 10), count, is_there);
    compare(count, is_there);
    check(db->close(db, 0), "db->close");
    check(env->close(env, 0), "env->close");
    free(is_there);
    return 0;
}
