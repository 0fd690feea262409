// A module that frees what the program allocates, and allocates what the program frees.
#include <stdlib.h>
#include <string.h>

void take(void *block) { free(block); }
char *give(void) { return strdup("from the module, allocated there"); }
