/* mprotect, keys, locks, and what is asked about memory. */

CASE("mprotect PROT_NONE", ALL) { said(r, "", mprotect(P, L, PROT_NONE)); }
CASE("mprotect PROT_NONE, and back", ALL)
{
	said(r, "", mprotect(P, L, PROT_NONE));
	said(r, "", mprotect(P, L, RW));
}
CASE("mprotect PROT_READ", ALL) { said(r, "", mprotect(P, L, PROT_READ)); }
CASE("mprotect PROT_READ, and back", ALL)
{
	said(r, "", mprotect(P, L, PROT_READ));
	said(r, "", mprotect(P, L, RW));
}
CASE("mprotect PROT_WRITE", ALL) { said(r, "", mprotect(P, L, PROT_WRITE)); }
CASE("mprotect PROT_EXEC", ALL) { said(r, "", mprotect(P, L, PROT_EXEC)); }
CASE("mprotect with all rights", ALL) { said(r, "", mprotect(P, L, RW | PROT_EXEC)); }
CASE("mprotect PROT_READ of a part", ALL) { said(r, "", mprotect(AT(1), Q, PROT_READ)); }
CASE("mprotect PROT_NONE of a part", ALL) { said(r, "", mprotect(AT(1), Q, PROT_NONE)); }
CASE("mprotect PROT_READ of one page", ALL) { said(r, "", mprotect(AT(1), PAGE, PROT_READ)); }
CASE("mprotect over a hole", ALL)
{
	said(r, "munmap", munmap(AT(1), Q));
	said(r, "mprotect", mprotect(P, L, PROT_READ));
}
CASE("mprotect that begins in a hole", ALL)
{
	said(r, "munmap", munmap(P, Q));
	said(r, "mprotect", mprotect(P, L, PROT_READ));
}
CASE("mprotect over the end", ALL) { said(r, "", mprotect(AT(2), L, PROT_READ)); }
CASE("mprotect where nothing is", ALONE) { said(r, "", mprotect(HERE, PAGE, PROT_READ)); }
CASE("mprotect not aligned", SOME) { said(r, "", mprotect(P + 1, Q, PROT_READ)); }
CASE("mprotect of no bytes", SOME) { said(r, "", mprotect(P, 0, PROT_READ)); }
CASE("mprotect of no bytes where nothing is", ALONE) { said(r, "", mprotect(HERE, 0, PROT_READ)); }
CASE("mprotect of a length that is no whole page", SOME) { said(r, "", mprotect(P, Q - 5, PROT_READ)); }
CASE("mprotect of the largest length", SOME) { said(r, "", mprotect(P, SIZE_MAX, PROT_READ)); }
CASE("mprotect PROT_GROWSDOWN", SOME) { said(r, "", mprotect(P, Q, PROT_READ | PROT_GROWSDOWN)); }
CASE("mprotect PROT_GROWSUP", SOME) { said(r, "", mprotect(P, Q, PROT_READ | PROT_GROWSUP)); }
CASE("mprotect PROT_GROWSDOWN | PROT_GROWSUP", SOME) { said(r, "", mprotect(P, Q, RW | PROT_GROWSDOWN | PROT_GROWSUP)); }
CASE("mprotect PROT_SEM", SOME) { said(r, "", mprotect(P, L, RW | 8)); }
CASE("mprotect with rights that are not known", SOME) { said(r, "", mprotect(P, L, RW | 0x100)); }
CASE("mprotect of memory mapped PROT_NONE", ALONE)
{
	placed(r, "mmap", mmap(HERE, 16 * PAGE, PROT_NONE, ANON, -1, 0));
	said(r, "mprotect", mprotect(HERE + 4 * PAGE, 4 * PAGE, RW));
	view(r, "", HERE, 16);
}
CASE("mprotect PROT_EXEC of code", FULL)
{
	static const unsigned char forty_two[] = {0xb8, 42, 0, 0, 0, 0xc3};
	memcpy(P, forty_two, sizeof forty_two);
	said(r, "madvise", madvise(P, L, r->state == EVICTED ? MADV_PAGEOUT : MADV_NORMAL));
	said(r, "mprotect", mprotect(P, L, PROT_READ | PROT_EXEC));
	said(r, "call", ((int (*)(void))(void *)P)());
}

CASE("pkey_mprotect with key -1", ALL) { said(r, "", pkey_mprotect(AT(1), Q, PROT_READ, -1)); }
CASE("pkey_mprotect with key 0", ALL) { said(r, "", pkey_mprotect(AT(1), Q, PROT_READ, 0)); }
CASE("pkey_mprotect with a key that nobody has", ALL) { said(r, "", pkey_mprotect(AT(1), Q, PROT_READ, 9)); }
CASE("pkey_mprotect with a key that cannot be", SOME) { said(r, "", pkey_mprotect(AT(1), Q, PROT_READ, 99)); }
CASE("pkey_mprotect with a key of its own", ALL)
{
	int key = pkey_alloc(0, 0);
	said(r, "pkey_alloc", key < 0 ? -1 : 0);
	if (key >= 0)
		said(r, "pkey_mprotect", pkey_mprotect(AT(1), Q, RW, key));
}

CASE("mlock", ALL) { said(r, "", mlock(P, L)); }
CASE("mlock of a part", ALL) { said(r, "", mlock(AT(1), Q)); }
CASE("mlock not aligned", ALL) { said(r, "", mlock(AT(1) + 5, 1)); }
CASE("mlock over a hole", ALL)
{
	said(r, "munmap", munmap(AT(1), Q));
	said(r, "mlock", mlock(P, L));
}
CASE("mlock of what nobody may touch", ALL)
{
	said(r, "mprotect", mprotect(P, L, PROT_NONE));
	said(r, "mlock", mlock(P, L));
}
CASE("mlock of what is read-only", ALL)
{
	said(r, "mprotect", mprotect(P, L, PROT_READ));
	said(r, "mlock", mlock(P, L));
}
CASE("mlock of no bytes", SOME) { said(r, "", mlock(P, 0)); }
CASE("mlock where nothing is", ALONE) { said(r, "", mlock(HERE, PAGE)); }
CASE("mlock of the largest length", SOME) { said(r, "", mlock(P, SIZE_MAX)); }
CASE("mlock2 MLOCK_ONFAULT", ALL) { said(r, "", mlock2(P, L, MLOCK_ONFAULT)); }
CASE("mlock2 with flags that are not known", SOME) { said(r, "", mlock2(P, L, 64)); }
CASE("munlock", ALL) { said(r, "", munlock(P, L)); }
CASE("munlock of a part", ALL) { said(r, "", munlock(AT(1), Q)); }
CASE("munlock over a hole", ALL)
{
	said(r, "munmap", munmap(AT(1), Q));
	said(r, "munlock", munlock(P, L));
}
CASE("munlock where nothing is", ALONE) { said(r, "", munlock(HERE, PAGE)); }
CASE("mlockall MCL_CURRENT", ALL) { said(r, "", mlockall(MCL_CURRENT)); }
CASE("mlockall MCL_CURRENT | MCL_ONFAULT", ALL) { said(r, "", mlockall(MCL_CURRENT | MCL_ONFAULT)); }
CASE("mlockall MCL_FUTURE, and mmap", SOME)
{
	said(r, "mlockall", mlockall(MCL_FUTURE));
	placed(r, "mmap", mmap(THERE, L, RW, ANON, -1, 0));
	view(r, "old", P, r->n);
	view(r, "new", THERE, r->n);
}
CASE("mlockall MCL_FUTURE | MCL_ONFAULT, and mmap", SOME)
{
	said(r, "mlockall", mlockall(MCL_FUTURE | MCL_ONFAULT));
	placed(r, "mmap", mmap(THERE, L, RW, ANON, -1, 0));
	view(r, "old", P, r->n);
	view(r, "new", THERE, r->n);
}
CASE("mlockall of nothing", SOME) { said(r, "", mlockall(0)); }
CASE("mlockall MCL_ONFAULT alone", SOME) { said(r, "", mlockall(MCL_ONFAULT)); }
CASE("mlockall with flags that are not known", SOME) { said(r, "", mlockall(MCL_CURRENT | 64)); }
CASE("munlockall", ALL) { said(r, "", munlockall()); }

static void in_core(struct run *r, void *at, size_t bytes)
{
	static unsigned char vec[2 * HUGE_PAGES];
	size_t all = (bytes + PAGE - 1) / PAGE, core = 0;
	int done = mincore(at, bytes, vec);
	said(r, "mincore", done);
	for (size_t i = 0; i < all; i++)
		core += vec[i] & 1;
	if (done == 0 && all)
		told(r, share(core, all));
}
CASE("mincore", ALL) { in_core(r, P, L); }
CASE("mincore of what was half discarded", ALL)
{
	said(r, "madvise", madvise(P, L / 2, MADV_DONTNEED_LOCKED));
	in_core(r, P, L);
}
CASE("mincore over a hole", SOME)
{
	said(r, "munmap", munmap(AT(1), Q));
	in_core(r, P, L);
}
CASE("mincore not aligned", SOME) { in_core(r, P + 1, PAGE); }
CASE("mincore of no bytes", SOME) { in_core(r, P, 0); }
CASE("mincore where nothing is", ALONE) { in_core(r, HERE, PAGE); }

CASE("msync MS_SYNC", ALL) { said(r, "", msync(P, L, MS_SYNC)); }
CASE("msync MS_ASYNC", ALL) { said(r, "", msync(P, L, MS_ASYNC)); }
CASE("msync MS_INVALIDATE", ALL) { said(r, "", msync(P, L, MS_INVALIDATE)); }
CASE("msync MS_SYNC | MS_ASYNC", SOME) { said(r, "", msync(P, L, MS_SYNC | MS_ASYNC)); }
CASE("msync over a hole", SOME)
{
	said(r, "munmap", munmap(AT(1), Q));
	said(r, "msync", msync(P, L, MS_SYNC));
}
CASE("msync not aligned", SOME) { said(r, "", msync(P + 1, PAGE, MS_SYNC)); }
CASE("msync where nothing is", ALONE) { said(r, "", msync(HERE, PAGE, MS_SYNC)); }

#ifndef SYS_mseal
#define SYS_mseal 462
#endif
static void sealed(struct run *r) { said(r, "mseal", syscall(SYS_mseal, P, L, 0)); }
CASE("mseal", ALL) { sealed(r); }
CASE("mseal, and munmap", ALL)
{
	sealed(r);
	said(r, "munmap", munmap(P, L));
}
CASE("mseal, and munmap of a part", ALL)
{
	sealed(r);
	said(r, "munmap", munmap(AT(1), Q));
}
CASE("mseal, and mprotect", ALL)
{
	sealed(r);
	said(r, "mprotect", mprotect(AT(1), Q, PROT_READ));
}
CASE("mseal, and mremap", ALL)
{
	sealed(r);
	placed(r, "mremap", mremap(P, L, L, MREMAP_MAYMOVE | MREMAP_FIXED, THERE));
}
CASE("mseal, and mremap smaller", ALL)
{
	sealed(r);
	placed(r, "mremap", mremap(P, L, L - Q, 0));
}
CASE("mseal, and mmap MAP_FIXED", ALL)
{
	sealed(r);
	placed(r, "mmap", mmap(AT(1), Q, RW, ANON | MAP_FIXED, -1, 0));
}
CASE("mseal, and a file over it", ALL)
{
	sealed(r);
	placed(r, "mmap", mmap(AT(1), 4 * PAGE, RW, MAP_PRIVATE | MAP_FIXED, file(), 0));
}
CASE("mseal, and MADV_DONTNEED", ALL)
{
	sealed(r);
	said(r, "madvise", madvise(AT(1), Q, MADV_DONTNEED));
}
CASE("mseal read-only, and MADV_DONTNEED", ALL)
{
	said(r, "mprotect", mprotect(P, L, PROT_READ));
	sealed(r);
	said(r, "madvise", madvise(AT(1), Q, MADV_DONTNEED));
}
CASE("mseal, and MADV_PAGEOUT", ALL)
{
	sealed(r);
	said(r, "madvise", madvise(P, L, MADV_PAGEOUT));
}
CASE("mseal over a hole", SOME)
{
	said(r, "munmap", munmap(AT(1), Q));
	sealed(r);
}
CASE("mseal with flags", SOME) { said(r, "", syscall(SYS_mseal, P, L, 1)); }

CASE("remap_file_pages", SOME) { said(r, "", remap_file_pages(P, Q, 0, 1, 0)); }
CASE("mbind", ALL)
{
	unsigned long nodes = 1;
	said(r, "", syscall(SYS_mbind, AT(1), Q, 2 /* MPOL_BIND */, &nodes, 64, 0));
}
CASE("mbind MPOL_MF_MOVE", ALL)
{
	unsigned long nodes = 1;
	said(r, "", syscall(SYS_mbind, AT(1), Q, 2, &nodes, 64, 2));
}
CASE("mbind over a hole", SOME)
{
	unsigned long nodes = 1;
	said(r, "munmap", munmap(AT(1), Q));
	said(r, "mbind", syscall(SYS_mbind, P, L, 2, &nodes, 64, 0));
}
CASE("get_mempolicy MPOL_F_ADDR", ALL)
{
	int mode = -1;
	said(r, "", syscall(SYS_get_mempolicy, &mode, NULL, 0, P, 2));
	said(r, "mode", mode);
}
CASE("get_mempolicy MPOL_F_ADDR | MPOL_F_NODE", ALL)
{
	int node = -1;
	said(r, "", syscall(SYS_get_mempolicy, &node, NULL, 0, P, 3));
	said(r, "node", node);
}
static void move(struct run *r, const int *nodes)
{
	void *pages[2] = {P, AT(3)};
	int status[2] = {99, 99};
	said(r, "", syscall(SYS_move_pages, 0, 2ul, pages, nodes, status, 2));
	for (int i = 0; i < 2; i++) {
		errno = -status[i];
		said(r, "status", status[i] < 0 ? -1 : status[i]);
	}
}
CASE("move_pages, asking only", ALL) { move(r, NULL); }
CASE("move_pages to where they are", ALL)
{
	static const int nodes[2];
	move(r, nodes);
}

CASE("sbrk", ALONE)
{
	unsigned char *at = sbrk(0);
	/* To a whole page first, which is the program's own. */
	at += -(uintptr_t)at % PAGE;
	said(r, "brk", brk(at));
	said(r, "sbrk", sbrk(16 * PAGE) == at ? 0 : -1);
	fill(at, 0, 16);
	void *q = sbrk(-8 * (intptr_t)PAGE);
	said(r, "sbrk", q == at + 16 * PAGE ? 0 : -1);
	view(r, "", at, 16);
}
CASE("sbrk of all addresses", ALONE) { said(r, "", sbrk(1ul << 46) == (void *)-1 ? -1 : 0); }
CASE("brk below the beginning", ALONE) { said(r, "", brk((void *)PAGE)); }
