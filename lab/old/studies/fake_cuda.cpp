// What autograd asks CUDA for, as no-ops: see fake_cuda.py
#include <ATen/core/Generator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#define CONST const override
using namespace c10;
static Device gpu() { return Device(DeviceType::CUDA, 0); }
struct Guard final : impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  Device getDevice() CONST { return gpu(); }  Device exchangeDevice(Device) CONST { return gpu(); }
  Stream getStream(Device) const noexcept override { return Stream(Stream::DEFAULT, gpu()); }
  Stream getDefaultStream(Device d) CONST { return getStream(d); }
  Stream exchangeStream(Stream s) const noexcept override { return s; }
  DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const Stream&, const DeviceIndex, const EventFlag) CONST {}
  void block(void*, const Stream&) CONST {}  bool queryEvent(void*) CONST { return true; }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)
struct Seed final : GeneratorImpl {
  Seed() : GeneratorImpl(gpu(), DispatchKeySet(DispatchKey::CUDA)) {}
  void set_current_seed(uint64_t) override {}  uint64_t current_seed() CONST { return 0; }
  void set_offset(uint64_t) override {}  uint64_t get_offset() CONST { return 0; }
  void set_state(const TensorImpl&) override {}  uint64_t seed() override { return 0; }
  intrusive_ptr<TensorImpl> get_state() CONST { return {}; }
  Seed* clone_impl() CONST { return new Seed(); }
};
struct CUDAHooks final : at::CUDAHooksInterface {
  CUDAHooks(at::CUDAHooksArgs) {}  void init() CONST {}  bool isBuilt() CONST { return true; }
  bool isAvailable() CONST { return true; }  bool hasCUDA() CONST { return true; }
  bool hasPrimaryContext(DeviceIndex) CONST { return true; }
  DeviceIndex deviceCount() CONST { return 1; }  DeviceIndex getCurrentDevice() CONST { return 0; }
  at::Generator getNewGenerator(DeviceIndex = -1) CONST { return at::make_generator<Seed>(); }
};
namespace at { REGISTER_CUDA_HOOKS(CUDAHooks) }
