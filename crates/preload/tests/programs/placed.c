/* Where mappings lie: of whole huge pages, and of a little more; and what that costs in mappings
   of the kernel and gives in huge pages. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define BLOCK (2UL << 20)
#define COUNT 32

static char *map(unsigned long bytes)
{
    char *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        perror("mmap");
    return at;
}

int main(void)
{
    unsigned long odd = BLOCK + 4096, aligned = 0, whole = 0, mappings = 0, huge = 0, kib;
    char line[512], *odd_at[COUNT];
    map(8 * BLOCK);
    for (int i = 0; i < COUNT; i++)
        whole += (unsigned long)map(4 * BLOCK) % BLOCK == 0;
    for (int i = 0; i < COUNT; i++) {
        odd_at[i] = map(odd);
        aligned += (unsigned long)odd_at[i] % BLOCK == 0;
    }
    for (int i = 0; i < COUNT; i++)
        memset(odd_at[i], 1, odd);
    FILE *maps = fopen("/proc/self/smaps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            mappings++;
        if (sscanf(line, "AnonHugePages: %lu kB", &kib) == 1)
            huge += kib;
    }
    printf("whole %lu aligned %lu of %d\n", whole, aligned, COUNT);
    printf("mappings %lu, huge %lu MiB\n", mappings, huge >> 10);
    return 0;
}
