/* The exec calls with variable arguments: they collect them and call the others. */
#include <stdarg.h>
#include <stddef.h>

extern int execve(const char *, char *const[], char *const[]);
extern int execvpe(const char *, char *const[], char *const[]);
extern char **environ;

#define COUNT(first)                                   \
	size_t n = 1;                                  \
	va_list list;                                  \
	va_start(list, first);                         \
	if (first != NULL)                             \
		while (va_arg(list, char *) != NULL)   \
			n++;                           \
	va_end(list)

#define COLLECT(first)                                 \
	const char *args[n + 1];                       \
	size_t i = 0;                                  \
	args[i++] = first;                             \
	va_start(list, first);                         \
	while (i <= n && first != NULL)                \
		args[i++] = va_arg(list, char *)

int deckle_execl(const char *path, const char *arg, ...)
{
	COUNT(arg);
	COLLECT(arg);
	va_end(list);
	return execve(path, (char *const *)args, environ);
}

int deckle_execlp(const char *file, const char *arg, ...)
{
	COUNT(arg);
	COLLECT(arg);
	va_end(list);
	return execvpe(file, (char *const *)args, environ);
}

int deckle_execle(const char *path, const char *arg, ...)
{
	COUNT(arg);
	COLLECT(arg);
	char *const *env = va_arg(list, char *const *);
	va_end(list);
	return execve(path, (char *const *)args, env);
}
