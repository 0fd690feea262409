/* Uses of fork. The first argument selects one; the test checks its output. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition) check((condition), #condition, __LINE__)

static void check(int holds, const char *condition, int line) {
    if (!holds) {
        fprintf(stderr, "line %d: not so: %s\n", line, condition);
        _exit(1);
    }
}

enum { PAGE = 4096 };

static void *volatile kept;

static int is_near(const void *one, const void *other) {
    uintptr_t a = (uintptr_t)one, b = (uintptr_t)other;
    return (a < b ? b - a : a - b) < 128 << 20;
}

static int succeeds(pid_t child) {
    int status = 1;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* A child allocates from a heap as its parent does, and neither sees the other's blocks. */
static void heap(void) {
    char *block = malloc(1000);
    strcpy(block, "the parent's");
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char *own[1000];
        for (int i = 0; i < 1000; i++) {
            own[i] = malloc(1000);
            CHECK(own[i] != NULL && is_near(own[i], block) && own[i] != block);
            memset(own[i], i, 1000);
        }
        strcpy(block, "the child's");
        free(block);
        for (int i = 0; i < 1000; i++)
            free(own[i]);
        _exit(0);
    }
    char *own[1000];
    for (int i = 0; i < 1000; i++) {
        own[i] = malloc(1000);
        memset(own[i], 0x5a, 1000);
    }
    CHECK(succeeds(child) && strcmp(block, "the parent's") == 0);
    for (int i = 0; i < 1000; i++)
        for (int j = 0; j < 1000; j++)
            CHECK(own[i][j] == 0x5a);
}

/* The parent ends at once. The child runs until the end of its input, and then has blocks. */
static void daemonize(void) {
    pid_t parent = getpid();
    kept = malloc(100);
    fflush(stdout);
    if (fork() != 0)
        _exit(0);
    while (getppid() == parent)
        usleep(1000);
    for (int i = 0; i < 10; i++) {
        char *block = malloc(100);
        snprintf(block, 100, "block %d of the daemon", i);
        kept = block;
    }
    printf("%d\n", (int)getpid());
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0)
        ;
    _exit(0);
}

/* Fork handlers that were registered before those of the library run while the library holds its locks. */
static void *handlers_block;
static int handlers_runs;

static void in_handler(void) {
    void *block = malloc(100);
    CHECK(block != NULL);
    free(handlers_block);
    handlers_block = realloc(block, 5000);
    CHECK(handlers_block != NULL && malloc_usable_size(handlers_block) >= 5000);
    handlers_runs++;
}

/* Runs once, in the next fork. */
static void (*in_next_fork)(void);

static void prepare(void) {
    void (*now)(void) = in_next_fork;
    in_next_fork = NULL;
    if (now != NULL)
        now();
}

static void register_handlers(void) {
    pthread_atfork(in_handler, in_handler, in_handler);
    pthread_atfork(prepare, NULL, NULL);
}

__attribute__((section(".preinit_array"), used)) static void (*preinit)(void) = register_handlers;

static void handlers(void) {
    handlers_block = malloc(300);
    for (int i = 1; i <= 20; i++) {
        pid_t child = fork();
        CHECK(child >= 0 && handlers_runs == 2 * i);
        if (child == 0)
            _exit(0);
        CHECK(succeeds(child));
    }
}

static void *churn(void *nothing) {
    void *blocks[100] = { NULL };
    for (unsigned i = 0;; i++) {
        pthread_testcancel();
        free(blocks[i % 100]);
        blocks[i % 100] = malloc(i % 7000);
        if (i % 50 == 0)
            free(malloc(5 << 20));
    }
    return nothing;
}

static void on_signal(int signal) {
    (void)signal;
}

/* Other threads allocate and free at every fork, and signals arrive. */
static void busy(void) {
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, churn, NULL) == 0);
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    sigaction(SIGALRM, &action, NULL);
    ualarm(2000, 2000);
    for (int i = 0; i < 60; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            char *block = malloc(10000);
            memset(block, 1, 10000);
            free(realloc(block, 100000));
            pid_t grandchild = fork();
            if (grandchild == 0)
                _exit(malloc(100) == NULL);
            _exit(!succeeds(grandchild));
        }
        CHECK(succeeds(child));
    }
    ualarm(0, 0);
    for (int i = 0; i < 3; i++)
        pthread_cancel(threads[i]);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
}

/* The program closes descriptors that it did not open, and opens files with the same numbers. */
static void closes(void) {
    kept = malloc(100);
    for (int i = 3; i < 100; i++)
        close(i);
    int files[20];
    for (int i = 0; i < 20; i++)
        CHECK((files[i] = open("/dev/null", O_RDWR)) == 3 + i);
    for (int i = 0; i < 100; i++)
        memset(malloc(100000), i, 100000);
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < 20; i++)
            CHECK(write(files[i], "x", 1) == 1);
        for (int i = 0; i < 100; i++)
            memset(malloc(100000), i, 100000);
        _exit(0);
    }
    CHECK(succeeds(child));
}

/* The program was started without standard descriptors. */
static void descriptors(void) {
    kept = malloc(100);
    for (int i = 0; i < 2; i++)
        CHECK(fcntl(i, F_GETFD) == -1 && errno == EBADF);
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < 2; i++)
            CHECK(fcntl(i, F_GETFD) == -1);
        _exit(0);
    }
    CHECK(succeeds(child));
}

/* A child that is made without fork handlers neither allocates nor frees blocks of its parent's heap, and neither do its own children. */
static void without_handlers(void) {
    char *block = malloc(1000), *other = malloc(1000), *third = malloc(1000);
    strcpy(block, "the parent's");
    for (int raw = 0; raw < 2; raw++) {
        pid_t child = raw ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : _Fork();
        CHECK(child >= 0);
        if (child == 0) {
            free(other);
            for (int i = 0; i < 200; i++) {
                char *own = malloc(1000);
                CHECK(own != NULL && !is_near(own, block));
                memset(own, 0xcc, 1000);
                if (i % 2 == 0)
                    free(own);
            }
            char *moved = realloc(third, 2000);
            CHECK(moved != NULL && !is_near(moved, block));
            char *copy = realloc(strcpy(malloc(20), block), 5000);
            CHECK(strcmp(copy, "the parent's") == 0);
            pid_t grandchild = fork();
            if (grandchild == 0) {
                CHECK(!is_near(malloc(1000), block));
                free(block);
                _exit(0);
            }
            CHECK(succeeds(grandchild));
            CHECK(!is_near(malloc(1000), block));
            _exit(0);
        }
        CHECK(succeeds(child));
    }
    CHECK(strcmp(block, "the parent's") == 0);
    CHECK(is_near(malloc(1000), block));
    /* Prints a message if one of them is not allocated. */
    free(block);
    free(other);
    free(third);
}

static char *its_parents;
static pid_t made;

/* Makes a child without fork handlers, which outlives a fork. */
static void *make_one_that_stays(void *nothing) {
    made = _Fork();
    if (made == 0) {
        sleep(10);
        _exit(1);
    }
    return nothing;
}

/* Makes a child without fork handlers, which forks. */
static void *make_one_that_forks(void *nothing) {
    made = _Fork();
    if (made == 0) {
        pid_t child = fork();
        if (child == 0) {
            CHECK(!is_near(malloc(1000), its_parents));
            _exit(0);
        }
        CHECK(succeeds(child));
        CHECK(!is_near(malloc(1000), its_parents));
        _exit(0);
    }
    return nothing;
}

static void *(*maker)(void *);

static void let_another_thread_make_it(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, maker, NULL) == 0 && pthread_join(thread, NULL) == 0 && made > 0);
}

/* While one thread forks and holds the locks of the library, another one makes a child without fork handlers. */
static void without_handlers_meanwhile(void) {
    /* An arena of a thread could lie near the heap. */
    CHECK(mallopt(M_ARENA_MAX, 1) == 1);
    its_parents = malloc(1000);
    for (int forks = 0; forks < 2; forks++) {
        maker = forks ? make_one_that_forks : make_one_that_stays;
        in_next_fork = let_another_thread_make_it;
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0)
            _exit(!is_near(malloc(1000), its_parents));
        CHECK(succeeds(child));
        /* The fork did not wait for the end of the other child. */
        CHECK(forks || (waitpid(made, NULL, WNOHANG) == 0 && kill(made, SIGKILL) == 0));
        CHECK(succeeds(made) == forks);
        CHECK(is_near(malloc(1000), its_parents));
    }
}

/* While one thread forks and holds the locks of the library, another one waits for them, and its signal handler forks. */
static volatile int is_handled;

static void fork_in_handler(int number) {
    (void)number;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        _exit(0);
    CHECK(succeeds(child));
    is_handled = 1;
}

static void *allocate_meanwhile(void *nothing) {
    /* The thread has inherited the mask of the forking thread. */
    sigset_t none;
    sigemptyset(&none);
    CHECK(pthread_sigmask(SIG_SETMASK, &none, NULL) == 0);
    kept = malloc(1000);
    return nothing;
}

static pthread_t handling;

static void let_waiting_thread_fork(void) {
    CHECK(pthread_create(&handling, NULL, allocate_meanwhile, NULL) == 0);
    /* Until it waits for a lock. */
    usleep(100000);
    CHECK(pthread_kill(handling, SIGUSR1) == 0);
    while (!is_handled)
        usleep(1000);
}

static void handler_forks_meanwhile(void) {
    struct sigaction action = { .sa_handler = fork_in_handler };
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    char *block = malloc(1000);
    strcpy(block, "the parent's");
    in_next_fork = let_waiting_thread_fork;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        strcpy(block, "the child's");
        _exit(!is_near(malloc(1000), block));
    }
    CHECK(succeeds(child) && strcmp(block, "the parent's") == 0);
    CHECK(pthread_join(handling, NULL) == 0 && is_near(kept, block));
}

/* Without standard input and output, one thread continues to print. Another one forks and changes its memory right after: the child has the memory
 * of the fork. */
static volatile int is_printing = 1;

static void *print(void *nothing) {
    while (is_printing)
        if (write(1, "x", 1) < 0)
            continue;
    return nothing;
}

static void prints(void) {
    enum { BYTES = 16 << 20 };
    signal(SIGPIPE, SIG_IGN);
    close(0);
    close(1);
    volatile char *memory = malloc(BYTES);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, print, NULL) == 0);
    for (int round = 1; round < 10; round++) {
        memset((char *)memory, round, BYTES);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            for (size_t at = 0; at < BYTES; at += 512)
                CHECK(memory[at] == round);
            _exit(0);
        }
        memset((char *)memory, 100, BYTES);
        CHECK(succeeds(child));
    }
    is_printing = 0;
    CHECK(pthread_join(thread, NULL) == 0);
}

/* A signal arrives while the thread holds a lock of the heap: the store of a block's header faults. Its handler forks, as that of a crash reporter does,
 * and the child continues, or ends as most do. */
static char *faults_page;
static char *faults_block;
static int faults_goes_on;
static pid_t faults_child = -1;

static void on_fault(int number) {
    (void)number;
    CHECK(mprotect(faults_page, 3 * PAGE, PROT_READ | PROT_WRITE) == 0 && faults_child == -1);
    faults_child = fork();
    CHECK(faults_child >= 0);
    if (faults_child == 0 && !faults_goes_on)
        _exit(0);
    if (faults_child == 0) {
        strcpy(faults_block, "the child's");
        pid_t grandchild = fork();
        if (grandchild == 0)
            _exit(strcmp(faults_block, "the child's") != 0);
        CHECK(succeeds(grandchild));
    }
    if (faults_child > 0)
        CHECK(succeeds(faults_child));
}

static void faults(int goes_on) {
    struct sigaction action = { .sa_handler = on_fault };
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
    faults_goes_on = goes_on;
    faults_block = malloc(100);
    strcpy(faults_block, "the parent's");
    char *freed = malloc(3000);
    faults_page = (char *)((uintptr_t)freed / PAGE * PAGE) - PAGE;
    CHECK(mprotect(faults_page, 3 * PAGE, PROT_NONE) == 0);
    free(freed);
    CHECK(faults_child >= 0);
    if (faults_child == 0) {
        CHECK(strcmp(faults_block, "the child's") == 0);
        char *own = malloc(3000);
        CHECK(own != NULL && !is_near(own, faults_block));
        free(own);
        free(faults_block);
        _exit(0);
    }
    CHECK(strcmp(faults_block, "the parent's") == 0);
    heap();
}

static void fault_forks(void) {
    faults(0);
}

static void fault_forks_and_goes_on(void) {
    faults(1);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } runs[] = { { "heap", heap }, { "daemonize", daemonize }, { "handlers", handlers },
                 { "busy", busy }, { "closes", closes }, { "descriptors", descriptors },
                 { "prints", prints }, { "fault_forks", fault_forks },
                 { "fault_forks_and_goes_on", fault_forks_and_goes_on }, { "without_handlers", without_handlers },
                 { "handler_forks_meanwhile", handler_forks_meanwhile },
                 { "without_handlers_meanwhile", without_handlers_meanwhile } };
    for (size_t i = 0; argc == 2 && i < sizeof(runs) / sizeof(runs[0]); i++) {
        if (strcmp(argv[1], runs[i].name) == 0) {
            runs[i].run();
            return 0;
        }
    }
    return 2;
}
