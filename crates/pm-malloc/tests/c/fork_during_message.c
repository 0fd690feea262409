/* A thread causes messages of invalid frees, faster than standard error is read, while another thread forks. The argument is whether the
   directory of the heap is removed, so that the child prints a message, too. */

#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <libgen.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int is_over;
static char *volatile block;

static void *complains(void *unused) {
    (void)unused;
    while (!is_over)
        free(block + 64);
    return NULL;
}

int main(int argc, char **argv) {
    block = malloc(1000);
    if (argc > 1 && strcmp(argv[1], "gone") == 0) {
        char path[4096];
        snprintf(path, sizeof path, "%s", getenv("PM_MALLOC_FILE"));
        if (unlink(path) != 0 || rmdir(dirname(path)) != 0)
            return 2;
    }
    pthread_t thread;
    if (pthread_create(&thread, NULL, complains, NULL) != 0)
        return 3;
    struct pollfd out = {.fd = 2, .events = POLLOUT};
    while (poll(&out, 1, 0) != 0)
        usleep(1000);
    usleep(50000);
    is_over = 1;
    if (write(1, "full\n", 5) != 5)
        return 4;
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    int status = 1;
    if (waitpid(child, &status, 0) != child || status != 0)
        return 5;
    pthread_join(thread, NULL);
    return 0;
}
