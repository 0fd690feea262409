/* Lets as many blocks as the argument says grow by small steps, each in its turn, to 4 MB in all. Prints how many bytes were moved
 * meanwhile, as far as a block's address tells. */

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
