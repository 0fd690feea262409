/* Allocates; with an argument also forks, and both processes check their memory. Counted are the calls of the library's start, or with an
   argument those of fork and of the child. */

#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COUNT = 200, BYTES = 700, MORE = 500 };
/* The results of main; 100 is added to the exit code of its child. */
enum { ABORTED = 50, ENDED = 100 };

static char *blocks[COUNT];

/* As pm_syscall_faults::counting. */
static void start_counting(void) { syscall(SYS_getpgid, 77777777); }
static void stop_counting(void) { syscall(SYS_getpgid, 77777778); }

/* Runs before any library is initialized, and so before the heap is. */
static void before_libraries(int argc, char **argv, char **environment) {
    (void)argv;
    (void)environment;
    if (argc < 2)
        start_counting();
}
__attribute__((section(".preinit_array"), used)) static void (*const first)(int, char **, char **) = before_libraries;

static int is_whole(int from, char what) {
    for (int i = 0; i < COUNT; i++)
        for (int j = from; j < BYTES; j++)
            if (blocks[i] != NULL && blocks[i][j] != (char)(what + i))
                return 0;
    return 1;
}

static int allocates_more(char what) {
    for (int i = 0; i < MORE; i++) {
        char *own = malloc(BYTES);
        if (own == NULL)
            return 0;
        memset(own, what, BYTES);
    }
    return 1;
}

static void run_child(void) {
    if (!is_whole(0, 'a'))
        _exit(5);
    if (!allocates_more('z'))
        _exit(6);
    for (int i = 0; i < COUNT; i++)
        if (blocks[i] != NULL)
            blocks[i][0] = 'C';
    _exit(is_whole(1, 'a') ? 0 : 7);
}

int main(int argc, char **argv) {
    (void)argv;
    for (int i = 0; i < COUNT; i++) {
        blocks[i] = malloc(BYTES);
        if (blocks[i] == NULL)
            return 2;
        memset(blocks[i], 'a' + i, BYTES);
    }
    if (argc < 2)
        return is_whole(0, 'a') ? 0 : 3;
    for (int i = 0; i < COUNT; i += 3) {
        free(blocks[i]);
        blocks[i] = NULL;
    }
    start_counting();
    pid_t child = fork();
    if (child < 0)
        return 4;
    if (child == 0)
        run_child();
    stop_counting();
    if (!allocates_more('y'))
        return 8;
    int status = 0;
    if (waitpid(child, &status, 0) != child)
        return 9;
    if (!is_whole(0, 'a'))
        return 10;
    if (WIFSIGNALED(status) && (WTERMSIG(status) == SIGABRT || WTERMSIG(status) == SIGKILL))
        return ABORTED;
    return WIFEXITED(status) ? ENDED + WEXITSTATUS(status) : 11;
}
