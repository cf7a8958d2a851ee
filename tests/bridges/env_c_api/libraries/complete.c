// An environment that uses every feature of the interface, and watches how it is used.
//
// Whatever it returns lives in memory of its own that the next call frees, so that a
// caller who reads late is seen by a sanitizer. Calls out of order are counted as
// violations, and every call by the name of its function; both are properties.
//
// Actions: "turn.horizontal" -10..10 and "jump" 0..1, int; "throttle" -1..1, double;
// "say", text. Reward of an advance: turn + 10 * jump + 0.5 * throttle + length of the text,
// once for each of its steps.
#include "env_c_api.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kMaxAllocations = 32, kFunctionCount = 31 };

enum {
  kCamera, kPosition, kMessage, kPath, kMap, kAnything,
#if ENV_C_API_VERSION >= 21
  kCounters, kTicks,
#endif
  kObservationCount
};

static const char* const kObservationNames[] = {
  "camera", "body.position", "message", "path", "map", "anything", "counters", "ticks"};

static const char* const kFunctionNames[kFunctionCount] = {
  "setting", "init", "start", "release_context", "error_message", "write_property",
  "read_property", "list_property", "environment_name", "action_discrete_count",
  "action_continuous_count", "action_text_count", "action_discrete_name",
  "action_continuous_name", "action_text_name", "action_discrete_bounds",
  "action_continuous_bounds", "observation_count", "observation_name", "observation_spec",
  "event_type_count", "event_type_name", "fps", "observation", "event_count", "event", "act",
  "act_discrete", "act_continuous", "act_text", "advance"};

// Across all contexts, so that a release can be seen from outside.
int complete_calls[kFunctionCount];
int complete_live_contexts;

int complete_call_count(const char* function) {
  for (int i = 0; i < kFunctionCount; ++i) {
    if (!strcmp(kFunctionNames[i], function)) return complete_calls[i];
  }
  return -1;
}

typedef enum { kNew, kReady, kEpisode, kEnded } State;

typedef struct {
  State state;
  int violations;
  void* allocations[kMaxAllocations];
  int allocation_count;
  char message[256];
  int may_ask_for_message;
  // Settings.
  int width, height, length, eagain, fail_init, fail_start;
  char end[16];
  char title[64];
  // Properties.
  char speed[32];
  // The episode.
  int episode, seed, step, eagain_left;
  int discrete[2];
  double continuous[1];
  char* text;
  int text_length;
} Context;

static void* Allocate(Context* c, size_t size) {
  void* memory = calloc(1, size ? size : 1);
  c->allocations[c->allocation_count++] = memory;
  return memory;
}

// Begins every function: frees what the last one returned, counts, and checks the order.
static Context* Enter(void* context, const char* function, int allowed) {
  Context* c = context;
  for (int i = 0; i < c->allocation_count; ++i) free(c->allocations[i]);
  c->allocation_count = 0;
  for (int i = 0; i < kFunctionCount; ++i) {
    if (!strcmp(kFunctionNames[i], function)) ++complete_calls[i];
  }
  if (!allowed) {
    ++c->violations;
    fprintf(stderr, "complete.c: %s called out of order\n", function);
  }
  c->may_ask_for_message = 0;
  return c;
}

#define ENTER(function, condition) \
  Context* c = context;            \
  c = Enter(context, function, (condition))

#define ANY_TIME 1
#define AFTER_INIT (c->state != kNew)
#define IN_EPISODE (c->state == kEpisode)

static const char* Text(Context* c, const char* text) {
  return strcpy(Allocate(c, strlen(text) + 1), text);
}

static int Fail(Context* c, int code, const char* format, const char* what) {
  snprintf(c->message, sizeof c->message, format, what);
  c->may_ask_for_message = 1;
  return code;
}

static int Setting(void* context, const char* key, const char* value) {
  ENTER("setting", c->state == kNew);
  if (!strcmp(key, "width")) c->width = atoi(value);
  else if (!strcmp(key, "height")) c->height = atoi(value);
  else if (!strcmp(key, "length")) c->length = atoi(value);
  else if (!strcmp(key, "eagain")) c->eagain = atoi(value);
  else if (!strcmp(key, "fail_init")) c->fail_init = !strcmp(value, "true");
  else if (!strcmp(key, "fail_start")) c->fail_start = !strcmp(value, "true");
  else if (!strcmp(key, "end")) snprintf(c->end, sizeof c->end, "%s", value);
  else if (!strcmp(key, "world.title")) snprintf(c->title, sizeof c->title, "%s", value);
  else return Fail(c, 1, "no setting '%s'", key);
  return 0;
}

static int Init(void* context) {
  ENTER("init", c->state == kNew);
  if (c->fail_init) return Fail(c, 7, "%s", "init was told to fail");
  c->state = kReady;
  return 0;
}

static int Start(void* context, int episode, int seed) {
  ENTER("start", AFTER_INIT);
  if (c->eagain_left > 0) {
    --c->eagain_left;
    return Fail(c, EAGAIN, "%s", "not ready yet");
  }
  c->eagain_left = c->eagain;
  if (c->fail_start) return Fail(c, 9, "%s", "start was told to fail");
  c->state = kEpisode;
  c->episode = episode;
  c->seed = seed;
  c->step = 0;
  return 0;
}

static void ReleaseContext(void* context) {
  Context* c = Enter(context, "release_context", ANY_TIME);
  free(c->text);
  free(c);
  --complete_live_contexts;
  // So that it can be seen after the process has ended, too.
  const char* folder = getenv("COMPLETE_RELEASED");
  if (folder) {
    char path[512];
    snprintf(path, sizeof(path), "%s/%d.closed", folder, (int)getpid());
    FILE* file = fopen(path, "w");
    if (file) fclose(file);
  }
}

static const char* ErrorMessage(void* context) {
  Context* c = context;
  c = Enter(context, "error_message", c->may_ask_for_message);
  return Text(c, c->message);
}

static EnvCApi_PropertyResult WriteProperty(void* context, const char* key, const char* value) {
  ENTER("write_property", AFTER_INIT);
  if (!strcmp(key, "speed")) {
    if (!*value || strspn(value, "0123456789") != strlen(value)) return kInvalidArgument;
    snprintf(c->speed, sizeof c->speed, "%s", value);
    return kSuccess;
  }
  if (!strcmp(key, "secret")) return kSuccess;
  if (!strcmp(key, "violations") || !strncmp(key, "calls", 5)) return kPermissionDenied;
  return kNotFound;
}

static EnvCApi_PropertyResult ReadProperty(void* context, const char* key, const char** value) {
  ENTER("read_property", AFTER_INIT);
  char number[32];
  if (!strcmp(key, "speed")) {
    *value = Text(c, c->speed);
    return kSuccess;
  }
  if (!strcmp(key, "violations")) {
    snprintf(number, sizeof number, "%d", c->violations);
    *value = Text(c, number);
    return kSuccess;
  }
  if (!strcmp(key, "title")) {
    *value = Text(c, c->title);
    return kSuccess;
  }
  if (!strncmp(key, "calls.", 6) && complete_call_count(key + 6) >= 0) {
    snprintf(number, sizeof number, "%d", complete_call_count(key + 6));
    *value = Text(c, number);
    return kSuccess;
  }
  if (!strcmp(key, "secret") || !strcmp(key, "calls")) return kPermissionDenied;
  return kNotFound;
}

static EnvCApi_PropertyResult ListProperty(void* context, void* userdata, const char* key,
                                           EnvCApi_PropertyCallback callback) {
  ENTER("list_property", AFTER_INIT);
  if (!strcmp(key, "")) {
    // A key lives no longer than its callback.
    char* name = strdup("speed");
    callback(userdata, name, kReadable | kWritable);
    free(name);
    callback(userdata, "secret", kWritable);
    callback(userdata, "title", kReadable);
    callback(userdata, "violations", kReadable);
    callback(userdata, "calls", kListable);
    return kSuccess;
  }
  if (!strcmp(key, "calls")) {
    for (int i = 0; i < kFunctionCount; ++i) {
      char name[64];
      snprintf(name, sizeof name, "calls.%s", kFunctionNames[i]);
      callback(userdata, name, kReadable);
    }
    return kSuccess;
  }
  return !strcmp(key, "speed") ? kPermissionDenied : kNotFound;
}

static const char* EnvironmentName(void* context) {
  ENTER("environment_name", AFTER_INIT);
  return Text(c, "complete");
}

#define COUNT(Function, name, count)      \
  static int Function(void* context) {    \
    ENTER(name, AFTER_INIT);              \
    return (count);                       \
  }

COUNT(ActionDiscreteCount, "action_discrete_count", 2)
COUNT(ActionContinuousCount, "action_continuous_count", 1)
COUNT(ActionTextCount, "action_text_count", 1)
COUNT(ObservationCount, "observation_count", kObservationCount)
COUNT(EventTypeCount, "event_type_count", 2)

static const char* ActionDiscreteName(void* context, int i) {
  ENTER("action_discrete_name", AFTER_INIT && i >= 0 && i < 2);
  return Text(c, i ? "jump" : "turn.horizontal");
}

static const char* ActionContinuousName(void* context, int i) {
  ENTER("action_continuous_name", AFTER_INIT && i == 0);
  return Text(c, "throttle");
}

static const char* ActionTextName(void* context, int i) {
  ENTER("action_text_name", AFTER_INIT && i == 0);
  return Text(c, "say");
}

static void ActionDiscreteBounds(void* context, int i, int* minimum, int* maximum) {
  ENTER("action_discrete_bounds", AFTER_INIT && i >= 0 && i < 2);
  *minimum = i ? 0 : -10;
  *maximum = i ? 1 : 10;
  (void)c;
}

static void ActionContinuousBounds(void* context, int i, double* minimum, double* maximum) {
  ENTER("action_continuous_bounds", AFTER_INIT && i == 0);
  *minimum = -1.0;
  *maximum = 1.0;
  (void)c;
}

static const char* ObservationName(void* context, int i) {
  ENTER("observation_name", AFTER_INIT && i >= 0 && i < kObservationCount);
  return Text(c, kObservationNames[i]);
}

static void Spec(Context* c, EnvCApi_ObservationSpec* spec, EnvCApi_ObservationType type,
                 int dims, int a, int b, int d) {
  int* shape = Allocate(c, 3 * sizeof *shape);
  shape[0] = a;
  shape[1] = b;
  shape[2] = d;
  spec->type = type;
  spec->dims = dims;
  spec->shape = dims ? shape : NULL;
}

static void ObservationSpec(void* context, int i, EnvCApi_ObservationSpec* spec) {
  ENTER("observation_spec", AFTER_INIT && i >= 0 && i < kObservationCount);
  switch (i) {
    case kCamera: Spec(c, spec, kBytes, 3, c->height, c->width, 3); break;
    case kPosition: Spec(c, spec, kDoubles, 1, 3, 0, 0); break;
    case kMessage: Spec(c, spec, kString, 1, 0, 0, 0); break;
    case kPath: Spec(c, spec, kDoubles, 2, 0, 2, 0); break;
    case kMap: Spec(c, spec, kBytes, 2, 0, 0, 0); break;
    case kAnything: Spec(c, spec, kDoubles, 0, 0, 0, 0); break;
#if ENV_C_API_VERSION >= 21
    case kCounters: Spec(c, spec, kInt32s, 1, 2, 0, 0); break;
    case kTicks: Spec(c, spec, kInt64s, 1, 1, 0, 0); break;
#endif
  }
}

static const char* EventTypeName(void* context, int i) {
  ENTER("event_type_name", AFTER_INIT && i >= 0 && i < 2);
  return Text(c, i ? "bump" : "tick");
}

static double* Doubles(Context* c, EnvCApi_Observation* o, int dims, int a, int b) {
  Spec(c, &o->spec, kDoubles, dims, a, b, 0);
  double* values = Allocate(c, (size_t)(dims > 0 ? a : 1) * (dims > 1 ? b : 1) * sizeof *values);
  o->payload.doubles = values;
  return values;
}

static void String(Context* c, EnvCApi_Observation* o, const char* text) {
  // Without a null at the end: its length is in the shape.
  int length = (int)strlen(text);
  Spec(c, &o->spec, kString, 1, length, 0, 0);
  o->payload.string = memcpy(Allocate(c, length), text, length);
}

static void Observation(void* context, int i, EnvCApi_Observation* o) {
  ENTER("observation", IN_EPISODE && i >= 0 && i < kObservationCount);
  int step = c->step;
  char text[64];
  switch (i) {
    case kCamera: {
      size_t size = (size_t)c->height * c->width * 3;
      unsigned char* pixels = Allocate(c, size);
      memset(pixels, (step + c->seed) & 255, size);
      Spec(c, &o->spec, kBytes, 3, c->height, c->width, 3);
      o->payload.bytes = pixels;
      break;
    }
    case kPosition: {
      double* position = Doubles(c, o, 1, 3, 0);
      position[0] = c->episode;
      position[1] = c->seed;
      position[2] = step;
      break;
    }
    case kMessage:
      snprintf(text, sizeof text, "step %d \xe2\x9c\x93", step);
      String(c, o, text);
      break;
    case kPath: {
      double* path = Doubles(c, o, 2, step, 2);
      for (int k = 0; k < 2 * step; ++k) path[k] = k;
      break;
    }
    case kMap: {
      unsigned char* map = Allocate(c, (size_t)(step + 1) * 2);
      for (int k = 0; k < (step + 1) * 2; ++k) map[k] = k;
      Spec(c, &o->spec, kBytes, 2, step + 1, 2, 0);
      o->payload.bytes = map;
      break;
    }
    case kAnything: {
      int dims = step % 3;
      double* values = Doubles(c, o, dims, 2, 3);
      for (int k = 0; k < (dims == 0 ? 1 : dims == 1 ? 2 : 6); ++k) values[k] = k + 0.5;
      break;
    }
#if ENV_C_API_VERSION >= 21
    case kCounters: {
      int32_t* counters = Allocate(c, 2 * sizeof *counters);
      counters[0] = step;
      counters[1] = INT32_MIN;
      Spec(c, &o->spec, kInt32s, 1, 2, 0, 0);
      o->payload.int32s = counters;
      break;
    }
    case kTicks: {
      int64_t* ticks = Allocate(c, sizeof *ticks);
      ticks[0] = INT64_MAX - step;
      Spec(c, &o->spec, kInt64s, 1, 1, 0, 0);
      o->payload.int64s = ticks;
      break;
    }
#endif
  }
}

// A tick in each step, and a bump beside it in each third one.
static int EventCount(void* context) {
  ENTER("event_count", IN_EPISODE);
  return c->step == 0 ? 0 : c->step % 3 == 0 ? 2 : 1;
}

static void Event(void* context, int i, EnvCApi_Event* event) {
  ENTER("event", IN_EPISODE && i >= 0 && i < 2);
  event->id = i;
  event->observation_count = i ? 2 : 0;
  event->observations = NULL;
  if (i) {
    EnvCApi_Observation* observations = Allocate(c, 2 * sizeof *observations);
    double* force = Doubles(c, &observations[0], 1, 2, 0);
    force[0] = c->step;
    force[1] = -1.0;
    String(c, &observations[1], "ouch");
    event->observations = observations;
  }
}

static void ActDiscrete(void* context, const int actions[]) {
  ENTER("act_discrete", IN_EPISODE);
  memcpy(c->discrete, actions, sizeof c->discrete);
}

static void ActContinuous(void* context, const double actions[]) {
  ENTER("act_continuous", IN_EPISODE);
  memcpy(c->continuous, actions, sizeof c->continuous);
}

#if ENV_C_API_VERSION == 14
COUNT(Fps, "fps", 60)

static void Act(void* context, const int discrete[], const double continuous[]) {
  ENTER("act", IN_EPISODE);
  memcpy(c->discrete, discrete, sizeof c->discrete);
  memcpy(c->continuous, continuous, sizeof c->continuous);
}
#endif

static void ActText(void* context, const EnvCApi_TextAction actions[]) {
  ENTER("act_text", IN_EPISODE && strlen(actions[0].data) == actions[0].len);
  free(c->text);
  c->text = strdup(actions[0].data);
  c->text_length = (int)actions[0].len;
}

static EnvCApi_EnvironmentStatus Advance(void* context, int steps, double* reward) {
  ENTER("advance", IN_EPISODE && steps > 0);
  c->step += steps;
  *reward = steps * (c->discrete[0] + 10 * c->discrete[1] + 0.5 * c->continuous[0] +
                     c->text_length);
  if (c->step < c->length) return kRunning;
  c->state = kEnded;
  if (!strcmp(c->end, "interrupted")) return kInterrupted;
  if (!strcmp(c->end, "error")) return Fail(c, kError, "%s", "the ground gave way");
  return kTerminated;
}

int complete_connect(EnvCApi* api, void** context) {
  static const EnvCApi kApi = {
    Setting, Init, Start, ReleaseContext, ErrorMessage, WriteProperty, ReadProperty,
    ListProperty, EnvironmentName, ActionDiscreteCount, ActionContinuousCount,
    ActionTextCount, ActionDiscreteName, ActionContinuousName, ActionTextName,
    ActionDiscreteBounds, ActionContinuousBounds, ObservationCount, ObservationName,
    ObservationSpec, EventTypeCount, EventTypeName,
#if ENV_C_API_VERSION == 14
    Fps,
#endif
    Observation, EventCount, Event,
#if ENV_C_API_VERSION == 14
    Act,
#endif
    ActDiscrete, ActContinuous, ActText, Advance};
  Context* c = calloc(1, sizeof *c);
  c->width = 96;
  c->height = 72;
  c->length = 10;
  strcpy(c->end, "terminated");
  strcpy(c->speed, "1");
  *api = kApi;
  *context = c;
  ++complete_live_contexts;
  return 0;
}

// The other shape of a connect function, with a struct of its own.
typedef struct {
  const char* title;
  const char* end;
} Params;

int complete_connect_with_params(const Params* params, EnvCApi* api, void** context) {
  if (!params || !params->title) return 22;
  complete_connect(api, context);
  Context* c = *context;
  snprintf(c->title, sizeof c->title, "%s", params->title);
  if (params->end) snprintf(c->end, sizeof c->end, "%s", params->end);
  return 0;
}

// As above, but of plain numbers.
typedef struct {
  int32_t width;
  double length;
} Numbers;

int complete_connect_with_numbers(const Numbers* numbers, EnvCApi* api, void** context) {
  complete_connect(api, context);
  Context* c = *context;
  c->width = numbers->width;
  c->length = (int)numbers->length;
  return 0;
}
