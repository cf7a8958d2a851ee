// As little as an environment can be: one action, one image, no end. For measuring.
#include "env_c_api.h"

static unsigned char image[72 * 96 * 3];
static const int kShape[3] = {72, 96, 3};

static int Setting(void* c, const char* k, const char* v) { (void)c; (void)k; (void)v; return 1; }
static int Init(void* c) { (void)c; return 0; }
static int Start(void* c, int episode, int seed) { (void)c; (void)episode; (void)seed; return 0; }
static void Release(void* c) { (void)c; }
static const char* Nothing(void* c) { (void)c; return ""; }
static EnvCApi_PropertyResult Write(void* c, const char* k, const char* v) {
  (void)c; (void)k; (void)v;
  return kNotFound;
}
static EnvCApi_PropertyResult Read(void* c, const char* k, const char** v) {
  (void)c; (void)k; (void)v;
  return kNotFound;
}
static EnvCApi_PropertyResult List(void* c, void* u, const char* k, EnvCApi_PropertyCallback f) {
  (void)c; (void)u; (void)k; (void)f;
  return kNotFound;
}
static int None(void* c) { (void)c; return 0; }
static int One(void* c) { (void)c; return 1; }
static const char* Move(void* c, int i) { (void)c; (void)i; return "move"; }
static const char* Image(void* c, int i) { (void)c; (void)i; return "image"; }
static void IntBounds(void* c, int i, int* low, int* high) {
  (void)c; (void)i;
  *low = 0;
  *high = 3;
}
static void Bounds(void* c, int i, double* low, double* high) {
  (void)c; (void)i;
  *low = *high = 0;
}
static void Spec(void* c, int i, EnvCApi_ObservationSpec* spec) {
  (void)c; (void)i;
  spec->type = kBytes;
  spec->dims = 3;
  spec->shape = kShape;
}
static void Observe(void* c, int i, EnvCApi_Observation* o) {
  Spec(c, i, &o->spec);
  o->payload.bytes = image;
}
static void Event(void* c, int i, EnvCApi_Event* event) { (void)c; (void)i; (void)event; }
static void Act(void* c, const int d[], const double f[]) { (void)c; (void)d; (void)f; }
static void Discrete(void* c, const int d[]) { (void)c; image[0] = (unsigned char)d[0]; }
static void Continuous(void* c, const double f[]) { (void)c; (void)f; }
static void Text(void* c, const EnvCApi_TextAction t[]) { (void)c; (void)t; }
static EnvCApi_EnvironmentStatus Advance(void* c, int steps, double* reward) {
  (void)c;
  ++image[1];
  *reward = steps;
  return kRunning;
}

int lean_connect(EnvCApi* api, void** context) {
  static const EnvCApi kApi = {
    Setting, Init, Start, Release, Nothing, Write, Read, List, Nothing, One, None, None, Move,
    Move, Move, IntBounds, Bounds, One, Image, Spec, None, Move, None, Observe, None, Event,
    Act, Discrete, Continuous, Text, Advance};
  *api = kApi;
  *context = image;
  return 0;
}
