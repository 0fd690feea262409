/* Grows as many blocks as the argument by small steps, each in turn, to 4 MB in total. Prints the number of bytes that were moved
 * according to the addresses of the blocks. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    char *blocks[8] = { NULL };
    size_t count = argc == 2 ? (size_t)atoi(argv[1]) : 1, moved = 0;
    for (size_t size = 1; size < 4000000 / count; size += 256) {
        for (size_t i = 0; i < count; i++) {
            uintptr_t before = (uintptr_t)blocks[i];
            blocks[i] = realloc(blocks[i], size);
            moved += before != 0 && before != (uintptr_t)blocks[i] ? size : 0;
            blocks[i][size - 1] = (char)size;
        }
    }
    for (size_t i = 0; i < count; i++)
        free(blocks[i]);
    printf("%zu\n", moved);
    return 0;
}
