/* What a page can be when its program forks, and the run through all cases: part of cow.c. */

static int is(const char *name) { return strcmp(state, name) == 0; }

/* Pages that are written before the fork. */
static int used(int i)
{
	for (int k = 0; (is("sparse") || is("zero-dropped")) && k < FEW; k++)
		if (PAGES[k] == i)
			return 1;
	return !is("sparse") && !is("zero-dropped") && !is("read") && !is("untouched");
}

static void fill(int from, int step)
{
	for (int i = from; i < ALL; i += step)
		if (used(i))
			write_page(i);
}

static void cut(void)
{
	if (is("rights") || is("zero-dropped"))
		rights(at(300), PAGE);
	else if (is("single"))
		gone(1, ALL);
	else if (is("alone"))
		dropped(1, ALL);
	else if (is("half"))
		gone(256, ALL);
	else if (is("moved")) {
		unsigned char *back = sides[me].base;
		unsigned char *away = room(PROT_NONE);
		for (int k = 0; k < 2; k++) {
			size_t n = 300 * PAGE, o = 100 * PAGE;
			unsigned char *from = k ? away : back, *to = k ? back : away;
			void *done = mremap(from + o, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, to + o);
			CHECK(done == to + o);
		}
		CHECK(munmap(away, HUGE) == 0);
	}
}

static void set_up(void)
{
	struct side *s = &sides[P];
	uint64_t seq = s->seq;
	memset(s, 0, sizeof *s);
	s->seq = seq;
	s->base = room(PROT_READ | PROT_WRITE);
	memset(s->there, 1, ALL);
	int small = is("base") || is("collapsed");
	if (small)
		CHECK(madvise(s->base, HUGE, MADV_NOHUGEPAGE) == 0);
	fill(0, 1);
	cut();
	if (small)
		CHECK(madvise(s->base, HUGE, MADV_HUGEPAGE) == 0);
	if (is("collapsed"))
		CHECK(madvise(s->base, HUGE, MADV_COLLAPSE) == 0);
	else if (is("half-forked"))
		CHECK(madvise(at(256), HUGE / 2, MADV_DONTFORK) == 0);
	else if (is("wiped"))
		CHECK(madvise(at(16), 16 * PAGE, MADV_WIPEONFORK) == 0);
	else if (is("read"))
		look();
	else if (is("cold"))
		cold(s->base, HUGE);
	else if (is("forked-before") || is("forked-still")) {
		spawn(S);
		fill(0, 3);
		if (is("forked-before"))
			tell(S, 'z');
	}
	if (is("locked") || is("locked-part")) {
		int from = is("locked") ? 0 : 250, n = is("locked") ? ALL : 10;
		CHECK(mlock(at(from), (size_t)n * PAGE) == 0);
		memset(s->locked + from, 1, (size_t)n);
	}
	if (is("lazy"))
		freed();
	if (residence == 's' || residence == 'b')
		runs(page_out, 0, ALL, 0);
	else if (residence == 'p')
		runs(page_out, 64, 320, 0);
	for (int k = 0; residence == 'b' && k < FEW; k += 2)
		if (s->there[PAGES[k]] && !right(s, PAGES[k], at(PAGES[k])))
			wrong(PAGES[k], at(PAGES[k]), "has");
}
