/* Children that are made without the handlers of fork(3): by _Fork(3), which glibc and POSIX 2024 have. */

#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COUNT = 200 };

int main(void) {
    char *block = malloc(1000);
    strcpy(block, "the parent's");
    char *others[COUNT];
    pid_t child = _Fork();
    if (child == 0) {
        strcpy(block, "the child's");
        for (int i = 0; i < COUNT; i++)
            memset(malloc(1000), 0xcc, 1000);
        _exit(0);
    }
    for (int i = 0; i < COUNT; i++) {
        others[i] = malloc(1000);
        memset(others[i], 0x5a, 1000);
    }
    int status = 1;
    if (waitpid(child, &status, 0) != child)
        return 1;
    for (int i = 0; i < COUNT; i++)
        for (int j = 0; j < 1000; j++)
            if (others[i][j] != 0x5a) {
                fprintf(stderr, "block %d of the parent holds what the child stored\n", i);
                return 1;
            }
    if (strcmp(block, "the parent's") != 0) {
        fprintf(stderr, "the parent finds: %s\n", block);
        return 1;
    }
    return 0;
}
