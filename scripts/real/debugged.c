/* What gdb looks at: a table, pages, and a function that it stops in. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { ENTRIES = 1 << 21, BYTES = 100 << 20 };

long *table;
unsigned long *pages;

__attribute__((noinline)) long checked(long sum)
{
	__asm__ volatile("" : "+r"(sum));
	return sum + (long)pages[3];
}

int main(void)
{
	table = malloc(ENTRIES * sizeof *table);
	pages = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (!table || pages == MAP_FAILED)
		return 1;
	long sum = 0;
	for (long i = 0; i < ENTRIES; i++)
		table[i] = i * 3;
	for (long i = 0; i < BYTES / 8; i++)
		pages[i] = i % 512 < 100 ? (unsigned long)i * 2654435761u : 0;
	for (long i = 0; i < ENTRIES; i++)
		sum += table[i];
	pages[4] = 0x12345;
	sum = checked(sum);
	for (long i = 5; i < BYTES / 8; i++)
		if (pages[i] != (i % 512 < 100 ? (unsigned long)i * 2654435761u : 0))
			return 2;
	printf("sum %ld\n", sum);
	return 0;
}
