/* mmap, munmap, mremap. */

static void *map_at(void *at, size_t bytes, int prot, int flags)
{
	return mmap(at, bytes, prot, flags, -1, 0);
}

/* A new mapping at the usual place. */
static void fresh(struct run *r, int prot, int flags)
{
	void *p = map_at(HERE, SMALL_PAGES * PAGE, prot, flags | ANON);
	placed(r, "", p);
	if (p != MAP_FAILED)
		view(r, "", p, SMALL_PAGES);
}

CASE("mmap anywhere", ALONE)
{
	void *p = map_at(NULL, 16 * PAGE, RW, ANON);
	placed(r, "", p);
	view(r, "", p, 16);
}
CASE("mmap at a hint", ALONE) { fresh(r, RW, 0); }
CASE("mmap at a hint that is taken", IN(WRITTEN)) { placed(r, "", map_at(P, L, RW, ANON)); }
CASE("mmap at a hint that is taken in part", IN(WRITTEN)) { placed(r, "", map_at(AT(3), L, RW, ANON)); }
CASE("mmap at a hint that is not aligned", ALONE) { placed(r, "", map_at(HERE + 100, PAGE, RW, ANON)); }
CASE("mmap at a hint beyond the addresses", ALONE) { placed(r, "", map_at((void *)(1ul << 47), PAGE, RW, ANON)); }
CASE("mmap at a hint that ends beyond the addresses", ALONE)
{
	placed(r, "", map_at((void *)((1ul << 47) - 2 * PAGE), 16 * PAGE, RW, ANON));
}
CASE("mmap PROT_NONE", ALONE) { fresh(r, PROT_NONE, 0); }
CASE("mmap PROT_READ", ALONE) { fresh(r, PROT_READ, 0); }
CASE("mmap PROT_WRITE", ALONE) { fresh(r, PROT_WRITE, 0); }
CASE("mmap PROT_EXEC", ALONE) { fresh(r, PROT_EXEC, 0); }
CASE("mmap with all rights", ALONE) { fresh(r, RW | PROT_EXEC, 0); }
CASE("mmap with rights that are not known", ALONE) { fresh(r, RW | 0x40, 0); }
CASE("mmap MAP_POPULATE", ALONE) { fresh(r, RW, MAP_POPULATE); }
CASE("mmap MAP_POPULATE, read-only", ALONE) { fresh(r, PROT_READ, MAP_POPULATE); }
CASE("mmap MAP_POPULATE, PROT_NONE", ALONE) { fresh(r, PROT_NONE, MAP_POPULATE); }
CASE("mmap MAP_POPULATE | MAP_NONBLOCK", ALONE) { fresh(r, RW, MAP_POPULATE | MAP_NONBLOCK); }
CASE("mmap MAP_LOCKED", ALONE) { fresh(r, RW, MAP_LOCKED); }
CASE("mmap MAP_LOCKED, PROT_NONE", ALONE) { fresh(r, PROT_NONE, MAP_LOCKED); }
CASE("mmap MAP_NORESERVE", ALONE) { fresh(r, RW, MAP_NORESERVE); }
CASE("mmap MAP_STACK", ALONE) { fresh(r, RW, MAP_STACK); }
CASE("mmap MAP_GROWSDOWN", ALONE) { fresh(r, RW, MAP_GROWSDOWN); }
CASE("mmap MAP_GROWSDOWN, touched below", ALONE)
{
	volatile unsigned char *p = map_at(HERE + 16 * PAGE, 16 * PAGE, RW, ANON | MAP_GROWSDOWN | MAP_FIXED);
	placed(r, "", (void *)p);
	p[-100] = 1;
	view(r, "", HERE, 32);
}
CASE("mmap MAP_HUGETLB", ALONE) { placed(r, "", map_at(HERE, 2 * MIB, RW, ANON | MAP_HUGETLB)); }
CASE("mmap MAP_32BIT", ALONE)
{
	void *p = map_at(NULL, 16 * PAGE, RW, ANON | MAP_32BIT);
	placed(r, "", p);
	told(r, (uintptr_t)p >> 31 ? "high" : "low");
	view(r, "", p, 16);
}
CASE("mmap MAP_SHARED", ALONE)
{
	void *p = map_at(HERE, 16 * PAGE, RW, MAP_SHARED | MAP_ANONYMOUS);
	placed(r, "", p);
	view(r, "", p, 16);
}
CASE("mmap with no type of mapping", ALONE) { placed(r, "", map_at(HERE, PAGE, RW, MAP_ANONYMOUS)); }
CASE("mmap with both types of mapping", ALONE) { placed(r, "", map_at(HERE, PAGE, RW, ANON | MAP_SHARED)); }
CASE("mmap with a type that is not known", ALONE) { placed(r, "", map_at(HERE, PAGE, RW, ANON | 0xa)); }
CASE("mmap MAP_DROPPABLE", ALONE) { placed(r, "", map_at(HERE, PAGE, RW, MAP_ANONYMOUS | 8)); }
CASE("mmap with flags that are not known", ALONE) { fresh(r, RW, 1 << 27); }
CASE("mmap of no bytes", ALONE) { placed(r, "", map_at(HERE, 0, RW, ANON)); }
CASE("mmap of one byte", ALONE)
{
	placed(r, "", map_at(HERE, 1, RW, ANON));
	view(r, "", HERE, 2);
}
CASE("mmap of a tebibyte, PROT_NONE", ALONE) { placed(r, "", map_at(HERE, 1ul << 40, PROT_NONE, ANON)); }
CASE("mmap of a tebibyte, MAP_NORESERVE", ALONE) { placed(r, "", map_at(HERE, 1ul << 40, RW, ANON | MAP_NORESERVE)); }
CASE("mmap of a tebibyte", ALONE) { placed(r, "", map_at(HERE, 1ul << 40, RW, ANON)); }
CASE("mmap of 64 TiB", ALONE) { placed(r, "", map_at(NULL, 1ul << 46, RW, ANON)); }
CASE("mmap of all addresses", ALONE) { placed(r, "", map_at(NULL, 1ul << 47, PROT_NONE, ANON)); }
CASE("mmap of more than all addresses", ALONE) { placed(r, "", map_at(NULL, 1ul << 48, PROT_NONE, ANON)); }
CASE("mmap of the largest length", ALONE) { placed(r, "", map_at(NULL, SIZE_MAX, RW, ANON)); }
CASE("mmap of the largest whole length", ALONE) { placed(r, "", map_at(NULL, -PAGE, RW, ANON)); }
CASE("mmap anonymous with an offset", ALONE) { placed(r, "", mmap(HERE, PAGE, RW, ANON, -1, PAGE)); }
CASE("mmap anonymous with an odd offset", ALONE) { placed(r, "", mmap(HERE, PAGE, RW, ANON, -1, 7)); }
CASE("mmap anonymous with a descriptor", ALONE) { placed(r, "", mmap(HERE, PAGE, RW, ANON, 77, 0)); }

static int file(void)
{
	int fd = memfd_create("file", 0);
	static unsigned char page[PAGE];
	memset(page, 'f', PAGE);
	CHECK(fd >= 0 && pwrite(fd, page, PAGE, 0) == (ssize_t)PAGE && ftruncate(fd, 4 * PAGE) == 0);
	return fd;
}
CASE("mmap private of a file", ALONE)
{
	placed(r, "", mmap(HERE, 4 * PAGE, RW, MAP_PRIVATE, file(), 0));
	view(r, "", HERE, 4);
}
CASE("mmap shared of a file", ALONE)
{
	placed(r, "", mmap(HERE, 4 * PAGE, RW, MAP_SHARED, file(), 0));
	view(r, "", HERE, 4);
}
CASE("mmap shared of a file, beyond its end", ALONE)
{
	placed(r, "", mmap(HERE, 8 * PAGE, RW, MAP_SHARED, file(), 0));
	view(r, "", HERE, 8);
}
CASE("mmap private of a file over a part", ALL) { placed(r, "", mmap(AT(1), 4 * PAGE, RW, MAP_PRIVATE | MAP_FIXED, file(), 0)); }
CASE("mmap shared of a file over a part", ALL) { placed(r, "", mmap(AT(1), 4 * PAGE, RW, MAP_SHARED | MAP_FIXED, file(), 0)); }
CASE("mmap of a bad descriptor over a part", ALL) { placed(r, "", mmap(AT(1), Q, RW, MAP_SHARED | MAP_FIXED, 999, 0)); }
CASE("mmap of a directory over a part", FULL)
{
	int fd = open("/", O_RDONLY);
	placed(r, "", mmap(AT(1), Q, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0));
}
CASE("mmap MAP_SHARED | MAP_FIXED over a part", ALL)
{
	placed(r, "", map_at(AT(1), Q, RW, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED));
}
CASE("mmap MAP_HUGETLB | MAP_FIXED over all", ALL) { placed(r, "", map_at(P, 2 * MIB, RW, ANON | MAP_HUGETLB | MAP_FIXED)); }
CASE("mmap MAP_FIXED", ALONE) { fresh(r, RW, MAP_FIXED); }
CASE("mmap MAP_FIXED over all", ALL) { placed(r, "", map_at(P, L, RW, ANON | MAP_FIXED)); }
CASE("mmap MAP_FIXED over a part", ALL) { placed(r, "", map_at(AT(1), Q, RW, ANON | MAP_FIXED)); }
CASE("mmap MAP_FIXED, PROT_NONE over a part", ALL) { placed(r, "", map_at(AT(1), Q, PROT_NONE, ANON | MAP_FIXED)); }
CASE("mmap MAP_FIXED, MAP_POPULATE over a part", ALL)
{
	placed(r, "", map_at(AT(1), Q, RW, ANON | MAP_FIXED | MAP_POPULATE));
}
CASE("mmap MAP_FIXED over the end", ALL)
{
	placed(r, "", map_at(AT(3), 2 * Q, RW, ANON | MAP_FIXED));
	view(r, "", P, r->n / 4 * 5);
}
CASE("mmap MAP_FIXED, not aligned", ALONE) { placed(r, "", map_at(HERE + 7, PAGE, RW, ANON | MAP_FIXED)); }
CASE("mmap MAP_FIXED beyond the addresses", ALONE)
{
	placed(r, "", map_at((void *)((1ul << 47) - 2 * PAGE), 16 * PAGE, RW, ANON | MAP_FIXED));
}
CASE("mmap MAP_FIXED of the largest length", IN(WRITTEN)) { placed(r, "", map_at(P, -PAGE, RW, ANON | MAP_FIXED)); }
CASE("mmap MAP_FIXED_NOREPLACE", ALONE) { fresh(r, RW, MAP_FIXED_NOREPLACE); }
CASE("mmap MAP_FIXED_NOREPLACE over a part", ALL) { placed(r, "", map_at(AT(1), Q, RW, ANON | MAP_FIXED_NOREPLACE)); }
CASE("mmap MAP_FIXED_NOREPLACE over the end", FULL) { placed(r, "", map_at(AT(3), L, RW, ANON | MAP_FIXED_NOREPLACE)); }
CASE("mmap MAP_FIXED_NOREPLACE in a hole", FULL)
{
	said(r, "munmap", munmap(AT(1), Q));
	placed(r, "mmap", map_at(AT(1), Q, RW, ANON | MAP_FIXED_NOREPLACE));
}

CASE("munmap whole", ALL) { said(r, "", munmap(P, L)); }
CASE("munmap twice", ALL)
{
	said(r, "", munmap(P, L));
	said(r, "", munmap(P, L));
}
CASE("munmap the beginning", ALL) { said(r, "", munmap(P, Q)); }
CASE("munmap a hole", ALL) { said(r, "", munmap(AT(1), Q)); }
CASE("munmap the end", ALL) { said(r, "", munmap(AT(3), Q)); }
CASE("munmap one page", ALL) { said(r, "", munmap(AT(1), PAGE)); }
CASE("munmap more than is mapped", ALL) { said(r, "", munmap(AT(2), L)); }
CASE("munmap over a hole", ALL)
{
	said(r, "", munmap(AT(1), Q));
	said(r, "", munmap(P, 3 * Q));
}
CASE("munmap a length that is no whole page", ALL) { said(r, "", munmap(P, Q - 100)); }
CASE("munmap not aligned", ALL) { said(r, "", munmap(P + 1, Q)); }
CASE("munmap of no bytes", ALL) { said(r, "", munmap(P, 0)); }
CASE("munmap where nothing is", ALONE) { said(r, "", munmap(HERE, PAGE)); }
CASE("munmap beyond the addresses", IN(WRITTEN)) { said(r, "", munmap(P, 1ul << 47)); }
CASE("munmap of the largest length", IN(WRITTEN)) { said(r, "", munmap(P, SIZE_MAX)); }
CASE("munmap, and mmap of the same place", ALL)
{
	said(r, "munmap", munmap(P, L));
	placed(r, "mmap", map_at(P, L, RW, ANON));
}

/* A part of the memory that was moved: from this quarter on. */
static void moved_from(struct run *r, size_t quarter, const char *call, void *to, size_t bytes)
{
	placed(r, call, to);
	view(r, "old", P, r->n);
	if (to != MAP_FAILED && to != P)
		view(r, "new", to, bytes / PAGE);
	r->views[r->nr_views - 1].first = to != MAP_FAILED && to != P ? quarter * r->n / 4 : 0;
}
static void moved(struct run *r, const char *call, void *to, size_t bytes) { moved_from(r, 0, call, to, bytes); }
CASE("mremap to the same size", ALL) { placed(r, "", mremap(P, L, L, 0)); }
CASE("mremap smaller", ALL) { placed(r, "", mremap(P, L, L - Q, 0)); }
CASE("mremap larger in place", ALL)
{
	placed(r, "", mremap(P, L, L + Q, 0));
	view(r, "", P, r->n / 4 * 5);
}
CASE("mremap larger, and something is in the way", ALL)
{
	CHECK(mmap(P + L, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, file(), 0) == P + L);
	placed(r, "", mremap(P, L, L + Q, 0));
}
CASE("mremap MREMAP_MAYMOVE, larger, and something is in the way", ALL)
{
	CHECK(mmap(P + L, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, file(), 0) == P + L);
	moved(r, "", mremap(P, L, L + Q, MREMAP_MAYMOVE), L + Q);
}
CASE("mremap MREMAP_MAYMOVE, far larger", ALL)
{
	placed(r, "", mremap(P, L, 64 * L, MREMAP_MAYMOVE));
	view(r, "", P, 2 * r->n);
}
CASE("mremap MREMAP_MAYMOVE, of a part in the middle, larger", ALL) { moved_from(r, 1, "", mremap(AT(1), Q, 2 * Q, MREMAP_MAYMOVE), 2 * Q); }
CASE("mremap MREMAP_FIXED", ALL) { moved(r, "", mremap(P, L, L, MREMAP_MAYMOVE | MREMAP_FIXED, THERE), L); }
CASE("mremap MREMAP_FIXED to where huge pages do not fit", ALL)
{
	moved(r, "", mremap(P, L, L, MREMAP_MAYMOVE | MREMAP_FIXED, THERE + PAGE), L);
}
CASE("mremap MREMAP_FIXED, larger", ALL) { moved(r, "", mremap(P, L, 2 * L, MREMAP_MAYMOVE | MREMAP_FIXED, THERE), 2 * L); }
CASE("mremap MREMAP_FIXED, smaller", ALL) { moved(r, "", mremap(P, L, Q, MREMAP_MAYMOVE | MREMAP_FIXED, THERE), Q); }
CASE("mremap MREMAP_FIXED of a part", ALL) { moved_from(r, 1, "", mremap(AT(1), Q, Q, MREMAP_MAYMOVE | MREMAP_FIXED, THERE), Q); }
CASE("mremap MREMAP_FIXED over what was written", ALL)
{
	CHECK(map_at(THERE, L, RW, ANON | MAP_FIXED) == THERE);
	memset(THERE, 7, L);
	moved(r, "", mremap(P, L, L, MREMAP_MAYMOVE | MREMAP_FIXED, THERE), L);
}
CASE("mremap MREMAP_FIXED over a file", ALL)
{
	CHECK(mmap(THERE, 4 * PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, file(), 0) == THERE);
	moved(r, "", mremap(P, L, L, MREMAP_MAYMOVE | MREMAP_FIXED, THERE), L);
}
CASE("mremap MREMAP_FIXED, and back", ALL)
{
	placed(r, "", mremap(P, L, L, MREMAP_MAYMOVE | MREMAP_FIXED, THERE));
	placed(r, "", mremap(THERE, L, L, MREMAP_MAYMOVE | MREMAP_FIXED, P));
}
CASE("mremap MREMAP_FIXED over itself", ALL) { placed(r, "", mremap(P, 2 * Q, 2 * Q, MREMAP_MAYMOVE | MREMAP_FIXED, AT(1))); }
CASE("mremap MREMAP_FIXED, not aligned", ALL) { placed(r, "", mremap(P, L, L, MREMAP_MAYMOVE | MREMAP_FIXED, THERE + 5)); }
CASE("mremap MREMAP_FIXED without MREMAP_MAYMOVE", ALL) { placed(r, "", mremap(P, L, L, MREMAP_FIXED, THERE)); }
CASE("mremap MREMAP_FIXED beyond the addresses", SOME)
{
	placed(r, "", mremap(P, L, L, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)(1ul << 47)));
}
CASE("mremap MREMAP_DONTUNMAP", ALL)
{
	void *to = mremap(P, L, L, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
	moved(r, "", to, L);
}
CASE("mremap MREMAP_DONTUNMAP | MREMAP_FIXED", ALL)
{
	moved(r, "", mremap(P, L, L, MREMAP_MAYMOVE | MREMAP_DONTUNMAP | MREMAP_FIXED, THERE), L);
}
CASE("mremap MREMAP_DONTUNMAP of a part", ALL)
{
	moved_from(r, 1, "", mremap(AT(1), Q, Q, MREMAP_MAYMOVE | MREMAP_DONTUNMAP | MREMAP_FIXED, THERE), Q);
}
CASE("mremap MREMAP_DONTUNMAP to a hint", SOME)
{
	moved(r, "", mremap(P, L, L, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, THERE), L);
}
CASE("mremap MREMAP_DONTUNMAP to a hint that is not aligned", SOME)
{
	placed(r, "", mremap(P, L, L, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, THERE + 3));
}
CASE("mremap MREMAP_DONTUNMAP, larger", ALL) { placed(r, "", mremap(P, L, 2 * L, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL)); }
CASE("mremap over several mappings", ALL)
{
	said(r, "mprotect", mprotect(AT(1), Q, PROT_READ));
	placed(r, "mremap", mremap(P, L, L, 0));
}
CASE("mremap MREMAP_MAYMOVE, larger, over several mappings", ALL)
{
	said(r, "mprotect", mprotect(AT(1), Q, PROT_READ));
	placed(r, "mremap", mremap(P, L, 2 * L, MREMAP_MAYMOVE));
}
CASE("mremap smaller, over several mappings", ALL)
{
	said(r, "mprotect", mprotect(AT(1), Q, PROT_READ));
	placed(r, "mremap", mremap(P, L, 3 * Q, 0));
}
CASE("mremap MREMAP_FIXED over several mappings", ALL)
{
	said(r, "mprotect", mprotect(AT(1), Q, PROT_READ));
	moved(r, "mremap", mremap(P, L, L, MREMAP_MAYMOVE | MREMAP_FIXED, THERE), L);
}
CASE("mremap MREMAP_FIXED over a hole", ALL)
{
	said(r, "munmap", munmap(AT(1), Q));
	moved(r, "mremap", mremap(P, L, L, MREMAP_MAYMOVE | MREMAP_FIXED, THERE), L);
}
CASE("mremap larger, over a hole", ALL)
{
	said(r, "munmap", munmap(AT(1), Q));
	placed(r, "mremap", mremap(P, L, 2 * L, MREMAP_MAYMOVE));
}
CASE("mremap smaller, over a hole", SOME)
{
	said(r, "munmap", munmap(AT(1), Q));
	placed(r, "mremap", mremap(P, L, 3 * Q, 0));
}
CASE("mremap of a range that begins in a hole", SOME)
{
	said(r, "munmap", munmap(P, Q));
	placed(r, "mremap", mremap(P, L, 2 * L, MREMAP_MAYMOVE));
}
CASE("mremap where nothing is", ALONE) { placed(r, "", mremap(HERE, PAGE, 2 * PAGE, MREMAP_MAYMOVE)); }
CASE("mremap of an old size of zero", SOME) { placed(r, "", mremap(P, 0, L, MREMAP_MAYMOVE)); }
CASE("mremap to no bytes", SOME) { placed(r, "", mremap(P, L, 0, MREMAP_MAYMOVE)); }
CASE("mremap not aligned", SOME) { placed(r, "", mremap(P + 9, PAGE, 2 * PAGE, MREMAP_MAYMOVE)); }
CASE("mremap with flags that are not known", SOME) { placed(r, "", mremap(P, L, L, 64)); }
CASE("mremap to 64 TiB", SOME) { placed(r, "", mremap(P, L, 1ul << 46, MREMAP_MAYMOVE)); }
CASE("mremap to all addresses", SOME) { placed(r, "", mremap(P, L, 1ul << 47, MREMAP_MAYMOVE)); }
CASE("mremap to the largest length", SOME) { placed(r, "", mremap(P, L, SIZE_MAX, MREMAP_MAYMOVE)); }
CASE("mremap without rights, MREMAP_FIXED", ALL)
{
	said(r, "mprotect", mprotect(P, L, PROT_NONE));
	placed(r, "mremap", mremap(P, L, L, MREMAP_MAYMOVE | MREMAP_FIXED, THERE));
	said(r, "mprotect", mprotect(THERE, L, RW));
	view(r, "old", P, r->n);
	view(r, "new", THERE, r->n);
}
