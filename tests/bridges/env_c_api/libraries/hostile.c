// Libraries that break the interface, one for each connect function. Each is complete.c but
// for what it does wrong.
#include "complete.c"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#define LIBRARY(name, ...)                               \
  int connect_##name(EnvCApi* api, void** context) {     \
    complete_connect(api, context);                      \
    __VA_ARGS__                                          \
    return 0;                                            \
  }

// An observation_spec with a shape of its own for the camera, which comes first.
#define SPEC(Name, Type, Dims, ...)                                                    \
  static void Name(void* context, int i, EnvCApi_ObservationSpec* spec) {              \
    ObservationSpec(context, i, spec);                                                 \
    static const int kShape[40] = {__VA_ARGS__};                                       \
    if (i == kCamera) {                                                                \
      spec->type = (EnvCApi_ObservationType)(Type);                                    \
      spec->dims = (Dims);                                                             \
      spec->shape = kShape;                                                            \
    }                                                                                  \
  }

// A camera of its own.
#define CAMERA(Name, Type, Dims, Payload, ...)                                         \
  static void Name(void* context, int i, EnvCApi_Observation* o) {                     \
    Observation(context, i, o);                                                        \
    static const int kShape[40] = {__VA_ARGS__};                                       \
    if (i == kCamera) {                                                                \
      o->spec.type = (EnvCApi_ObservationType)(Type);                                  \
      o->spec.dims = (Dims);                                                           \
      o->spec.shape = kShape;                                                          \
      o->payload.bytes = (const unsigned char*)(Payload);                              \
    }                                                                                  \
  }

#define SIZE 2147483647
static unsigned char pixels[72 * 96 * 3];

// What connecting tells.

int connect_fails(EnvCApi* api, void** context) {
  (void)api;
  (void)context;
  return 5;
}

LIBRARY(null_function, api->advance = NULL;)
LIBRARY(all_null, memset(api, 0, sizeof *api);)
int connect_null_context(EnvCApi* api, void** context) {
  void* lost;
  int code = complete_connect(api, &lost);
  ReleaseContext(lost);
  *context = NULL;
  return code;
}
LIBRARY(larger_struct, (&api->advance)[1] = api->advance;)

// What init tells.

static const char* NullName(void* context, int i) { (void)context; (void)i; return NULL; }
static const char* EmptyName(void* context, int i) { (void)context; (void)i; return ""; }
static const char* LatinName(void* context, int i) { (void)context; (void)i; return "caf\xe9"; }
static const char* SameName(void* context, int i) { (void)context; (void)i; return "same"; }
static const char* EndlessName(void* context, int i) {
  static char name[(1 << 20) + 1];
  (void)context;
  (void)i;
  return memset(name, 'x', sizeof name);
}
static const char* NullText(void* context) { (void)context; return NULL; }
static int Negative(void* context) { (void)context; return -1; }
static int Huge(void* context) { (void)context; return SIZE; }
static void NanBounds(void* context, int i, double* minimum, double* maximum) {
  (void)context;
  (void)i;
  *minimum = *maximum = 0.0 / 0.0;
}
static void NoBounds(void* context, int i, int* minimum, int* maximum) {
  (void)context; (void)i; (void)minimum; (void)maximum;
}
static void InvertedBounds(void* context, int i, int* minimum, int* maximum) {
  (void)context;
  (void)i;
  *minimum = 5;
  *maximum = -5;
}
static void NoSpec(void* context, int i, EnvCApi_ObservationSpec* spec) {
  (void)context; (void)i; (void)spec;
}
static void NullShape(void* context, int i, EnvCApi_ObservationSpec* spec) {
  ObservationSpec(context, i, spec);
  if (i == kCamera) spec->shape = NULL;
}
SPEC(TooManyDims, kBytes, 33, 1)
SPEC(NegativeDims, kBytes, -2, 1)
SPEC(NegativeSize, kBytes, 2, 3, -5)
SPEC(Overflow, kDoubles, 3, SIZE, SIZE, SIZE)
SPEC(OverflowHidden, kDoubles, 4, SIZE, SIZE, SIZE, 0)
SPEC(WrapsToZero, kDoubles, 3, 1 << 30, 1 << 30, 16)
SPEC(OverBudget, kBytes, 2, 65536, 65536)
SPEC(UnknownType, 77, 1, 3)
SPEC(TextOfTwoDims, kString, 2, 3, 3)

LIBRARY(null_name, api->observation_name = NullName;)
LIBRARY(empty_name, api->action_text_name = EmptyName;)
LIBRARY(latin_name, api->action_discrete_name = LatinName;)
LIBRARY(same_names, api->action_discrete_name = SameName;)
LIBRARY(same_observations, api->observation_name = SameName;)
LIBRARY(endless_name, api->event_type_name = EndlessName;)
LIBRARY(null_environment_name, api->environment_name = NullText;)
LIBRARY(negative_count, api->observation_count = Negative;)
LIBRARY(huge_count, api->action_discrete_count = Huge;)
LIBRARY(nan_bounds, api->action_continuous_bounds = NanBounds;)
LIBRARY(no_bounds, api->action_discrete_bounds = NoBounds;)
LIBRARY(inverted_bounds, api->action_discrete_bounds = InvertedBounds;)
LIBRARY(no_spec, api->observation_spec = NoSpec;)
LIBRARY(null_shape, api->observation_spec = NullShape;)
LIBRARY(too_many_dims, api->observation_spec = TooManyDims;)
LIBRARY(negative_dims, api->observation_spec = NegativeDims;)
LIBRARY(negative_size, api->observation_spec = NegativeSize;)
LIBRARY(overflow, api->observation_spec = Overflow;)
LIBRARY(overflow_hidden, api->observation_spec = OverflowHidden;)
LIBRARY(wraps_to_zero, api->observation_spec = WrapsToZero;)
LIBRARY(over_budget, api->observation_spec = OverBudget;)
LIBRARY(unknown_type, api->observation_spec = UnknownType;)
LIBRARY(text_of_two_dims, api->observation_spec = TextOfTwoDims;)

// What start and advance tell.

static int EndlessEagain(void* context, int episode, int seed) {
  Context* c = context;
  (void)episode;
  (void)seed;
  return Fail(c, EAGAIN, "%s", "never ready");
}
static int FailingStart(void* context, int episode, int seed) {
  (void)context; (void)episode; (void)seed;
  return 3;
}
static EnvCApi_EnvironmentStatus UnknownStatus(void* context, int steps, double* reward) {
  Advance(context, steps, reward);
  return (EnvCApi_EnvironmentStatus)42;
}
static EnvCApi_EnvironmentStatus NoReward(void* context, int steps, double* reward) {
  double lost;
  (void)reward;
  return Advance(context, steps, &lost);
}
static EnvCApi_EnvironmentStatus NanReward(void* context, int steps, double* reward) {
  EnvCApi_EnvironmentStatus status = Advance(context, steps, reward);
  *reward = 0.0 / 0.0;
  return status;
}
static EnvCApi_EnvironmentStatus SpeechlessError(void* context, int steps, double* reward) {
  Advance(context, steps, reward);
  return kError;
}
static void NoObservation(void* context, int i, EnvCApi_Observation* o) {
  (void)context; (void)i; (void)o;
}
CAMERA(NullPayload, kBytes, 3, NULL, 72, 96, 3)
CAMERA(OtherShape, kBytes, 3, pixels, 72, 96, 2)
CAMERA(OtherType, kDoubles, 3, pixels, 1, 1, 1)
CAMERA(DynamicDims, kBytes, -1, pixels, 72, 96, 3)
CAMERA(ManyDims, kBytes, 33, pixels, 1)
CAMERA(NegativeLength, kBytes, 3, pixels, 72, 96, -3)
CAMERA(LatinText, kString, 1, "caf\xe9", 4)
SPEC(DynamicCamera, kBytes, 2, 0, 8)
CAMERA(LargeCamera, kBytes, 2, pixels, SIZE, 8)
CAMERA(WrongRow, kBytes, 2, pixels, 2, 9)
SPEC(TextCamera, kString, 1, 0)

static int OneEvent(void* context) { (void)context; return 1; }
static void NoEvent(void* context, int i, EnvCApi_Event* event) {
  (void)context; (void)i; (void)event;
}
static void UnknownEvent(void* context, int i, EnvCApi_Event* event) {
  (void)context; (void)i;
  event->id = 2;
}
static void NullEventObservations(void* context, int i, EnvCApi_Event* event) {
  (void)context; (void)i;
  event->id = 1;
  event->observation_count = 3;
}
static void NegativeEventObservations(void* context, int i, EnvCApi_Event* event) {
  (void)context; (void)i;
  event->id = 1;
  event->observation_count = -3;
}
static void LargeEvents(void* context, int i, EnvCApi_Event* event) {
  // Each within the budget, and too much together; nobody gets to read the second.
  static int shapes[] = {1 << 20, 1 << 27};
  static EnvCApi_Observation observations[2];
  (void)i;
  for (int k = 0; k < 2; ++k) {
    observations[k].spec.type = kBytes;
    observations[k].spec.dims = 1;
    observations[k].spec.shape = &shapes[k];
    observations[k].payload.bytes = Allocate(context, k ? 1 : 1 << 20);
  }
  event->id = 1;
  event->observation_count = 2;
  event->observations = observations;
}

LIBRARY(endless_eagain, api->start = EndlessEagain;)
LIBRARY(null_message, api->start = FailingStart; api->error_message = NullText;)
LIBRARY(unknown_status, api->advance = UnknownStatus;)
LIBRARY(no_reward, api->advance = NoReward;)
LIBRARY(nan_reward, api->advance = NanReward;)
LIBRARY(speechless_error, api->advance = SpeechlessError;)
LIBRARY(no_observation, api->observation = NoObservation;)
LIBRARY(null_payload, api->observation = NullPayload;)
LIBRARY(other_shape, api->observation = OtherShape;)
LIBRARY(other_type, api->observation = OtherType;)
LIBRARY(dynamic_dims, api->observation = DynamicDims;)
LIBRARY(many_dims, api->observation = ManyDims;)
LIBRARY(negative_length, api->observation = NegativeLength;)
LIBRARY(large_camera, api->observation_spec = DynamicCamera; api->observation = LargeCamera;)
LIBRARY(wrong_row, api->observation_spec = DynamicCamera; api->observation = WrongRow;)
LIBRARY(latin_text, api->observation_spec = TextCamera; api->observation = LatinText;)
LIBRARY(negative_events, api->event_count = Negative;)
LIBRARY(huge_events, api->event_count = Huge;)
LIBRARY(no_event, api->event_count = OneEvent; api->event = NoEvent;)
LIBRARY(unknown_event, api->event_count = OneEvent; api->event = UnknownEvent;)
LIBRARY(null_event_observations, api->event_count = OneEvent; api->event = NullEventObservations;)
LIBRARY(negative_event_observations,
        api->event_count = OneEvent; api->event = NegativeEventObservations;)
LIBRARY(large_events, api->event_count = OneEvent; api->event = LargeEvents;)

// What properties tell.

static EnvCApi_PropertyCallback late_callback;
static void* late_userdata;

static EnvCApi_PropertyResult UnknownResult(void* context, const char* key, const char* value) {
  (void)context; (void)key; (void)value;
  return (EnvCApi_PropertyResult)9;
}
static EnvCApi_PropertyResult NullValue(void* context, const char* key, const char** value) {
  (void)context; (void)key; (void)value;
  return kSuccess;
}
static EnvCApi_PropertyResult InvalidRead(void* context, const char* key, const char** value) {
  (void)context; (void)key; (void)value;
  return kInvalidArgument;
}

#define LIST(Name, ...)                                                                \
  static EnvCApi_PropertyResult Name(void* context, void* userdata, const char* key,   \
                                     EnvCApi_PropertyCallback callback) {              \
    (void)context; (void)key; (void)userdata; (void)callback;                          \
    __VA_ARGS__                                                                        \
    return kSuccess;                                                                   \
  }

LIST(NullKey, callback(userdata, NULL, kReadable); callback(userdata, "fine", kReadable);)
LIST(OddAttributes, callback(userdata, "odd", (EnvCApi_PropertyAttributes)64);)
LIST(OtherUserdata,
     callback(NULL, "lost", kReadable);
     callback((char*)userdata + 1000000, "lost", kReadable);
     callback((void*)(uintptr_t)0xdeadbeefdeadbeef, "lost", kReadable);
     callback(userdata, "found", kReadable);)
LIST(Late,
     if (late_callback) late_callback(late_userdata, "late", kReadable);
     late_callback = callback;
     late_userdata = userdata;)
LIST(Flood, for (int i = 0; i < 70000; ++i) {
       char name[32];
       snprintf(name, sizeof name, "p%d", i);
       callback(userdata, name, kReadable);
     })
LIST(Endless, char name[512]; snprintf(name, sizeof name, "%sx", key);
     callback(userdata, name, kListable);)

static void* CallFromThread(void* list) {
  late_callback(list, "threaded", kReadable);
  return NULL;
}
LIST(Threaded, pthread_t thread; late_callback = callback;
     pthread_create(&thread, NULL, CallFromThread, userdata); pthread_join(thread, NULL);)

LIBRARY(unknown_result, api->write_property = UnknownResult;)
LIBRARY(null_value, api->read_property = NullValue;)
LIBRARY(invalid_read, api->read_property = InvalidRead;)
LIBRARY(null_key, api->list_property = NullKey;)
LIBRARY(odd_attributes, api->list_property = OddAttributes;)
LIBRARY(other_userdata, api->list_property = OtherUserdata;)
LIBRARY(late_callback, api->list_property = Late;)
LIBRARY(flood, api->list_property = Flood;)
LIBRARY(endless_tree, api->list_property = Endless;)
LIBRARY(threaded, api->list_property = Threaded;)

// What ends the process, or never comes back.

static int volatile depth;

static EnvCApi_EnvironmentStatus Aborts(void* context, int steps, double* reward) {
  (void)context; (void)steps; (void)reward;
  abort();
}
static EnvCApi_EnvironmentStatus Exits(void* context, int steps, double* reward) {
  (void)context; (void)steps; (void)reward;
  _exit(3);
}
static EnvCApi_EnvironmentStatus Hangs(void* context, int steps, double* reward) {
  (void)context; (void)steps; (void)reward;
  while (depth >= 0) pause();
  return kError;
}
static EnvCApi_EnvironmentStatus KillsItself(void* context, int steps, double* reward) {
  (void)context; (void)steps; (void)reward;
  raise(SIGKILL);
  return kError;
}
static EnvCApi_EnvironmentStatus Scribbles(void* context, int steps, double* reward) {
  for (int fd = 3; fd < 1024; ++fd) {
    if (write(fd, "The quick brown fox jumps over the lazy dog", 43) < 0) continue;
  }
  return Advance(context, steps, reward);
}
static EnvCApi_EnvironmentStatus ClosesAll(void* context, int steps, double* reward) {
  for (int fd = 3; fd < 1024; ++fd) close(fd);
  return Advance(context, steps, reward);
}
static int Recurse(char* above) {
  char frame[4096];
  memset(frame, above[0], sizeof frame);
  ++depth;
  int below = Recurse(frame);
  return below + frame[depth % sizeof frame];
}
static EnvCApi_EnvironmentStatus Overflows(void* context, int steps, double* reward) {
  char first = 1;
  *reward = Recurse(&first);
  return Advance(context, steps, reward);
}
static int CrashingInit(void* context) {
  (void)context;
  return *(volatile int*)8;
}
CAMERA(WildPayload, kBytes, 3, 4096, 72, 96, 3)
static const char* WildName(void* context, int i) {
  (void)context; (void)i;
  return (const char*)4096;
}
static void WildEvent(void* context, int i, EnvCApi_Event* event) {
  (void)context; (void)i;
  event->id = 1;
  event->observation_count = 1;
  event->observations = (const EnvCApi_Observation*)4096;
}
static void CrashingRelease(void* context) {
  (void)context;
  abort();
}

LIBRARY(aborts, api->advance = Aborts;)
LIBRARY(exits, api->advance = Exits;)
LIBRARY(hangs, api->advance = Hangs;)
LIBRARY(kills_itself, api->advance = KillsItself;)
LIBRARY(scribbles, api->advance = Scribbles;)
LIBRARY(closes_all, api->advance = ClosesAll;)
LIBRARY(overflows, api->advance = Overflows;)
LIBRARY(crashing_init, api->init = CrashingInit;)
LIBRARY(wild_payload, api->observation = WildPayload;)
LIBRARY(wild_name, api->observation_name = WildName;)
LIBRARY(wild_event, api->event_count = OneEvent; api->event = WildEvent;)
LIBRARY(crashing_release, api->release_context = CrashingRelease;)
LIBRARY(wild_function, api->setting = (int (*)(void*, const char*, const char*))4096;)
