/* Tasks divided among threads. */

#ifndef TPT_PARALLEL_H
#define TPT_PARALLEL_H

#include <pthread.h>

#include "kernels.h"

#define MOST_THREADS 64

typedef int (*Task)(void *work, Int number); /* returns whether there was too little memory */

typedef struct {
    void *work;
    Task task;
    Int n_tasks, next;
    int failed;
} Tasks;

static void *run_tasks(void *argument) {
    Tasks *tasks = argument;
    Int number;
    while ((number = __atomic_fetch_add(&tasks->next, 1, __ATOMIC_RELAXED)) < tasks->n_tasks)
        if (tasks->task(tasks->work, number)) __atomic_store_n(&tasks->failed, 1, __ATOMIC_RELAXED);
    return NULL;
}

/* Run all tasks; returns whether one had too little memory. */
static int in_parallel(void *work, Task task, Int n_tasks, Int n_threads) {
    Tasks tasks = {work, task, n_tasks, 0, 0};
    pthread_t threads[MOST_THREADS];
    Int n_started = 0, most = n_threads < n_tasks ? n_threads : n_tasks;
    while (n_started + 1 < most && n_started < MOST_THREADS &&
           !pthread_create(&threads[n_started], NULL, run_tasks, &tasks))
        n_started++;
    run_tasks(&tasks);
    while (n_started) pthread_join(threads[--n_started], NULL);
    return tasks.failed;
}

#endif
