// Loads a module so that it looks for functions in its own libraries first.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **words) {
    void *module = count > 1 ? dlopen(words[1], RTLD_NOW | RTLD_DEEPBIND) : NULL;
    if (!module) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    void (*take)(void *) = (void (*)(void *))dlsym(module, "take");
    char *(*give)(void) = (char *(*)(void))dlsym(module, "give");
    take(malloc(100));
    free(give());
    char *longer = realloc(give(), 1000000);
    puts(longer);
    take(longer);
    return 0;
}
