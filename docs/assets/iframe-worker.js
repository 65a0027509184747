// The search runs in a Worker, and browsers start none for a page that was opened from the disk. This one runs its script
// in a hidden frame instead, which may read the page's files because it has the page's origin.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      frame.srcdoc = "<!doctype html><body>"
      this.started = new Promise((resolve, reject) => {
        frame.onload = () => {
          const inner = frame.contentWindow
          inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
          const script = inner.document.createElement("script")
          script.src = url
          script.onload = () => resolve(inner)
          script.onerror = () => reject(new Error(`${url} cannot be read`))
          inner.document.body.append(script)
        }
      })
      document.body.append(frame)
    }

    async postMessage(data) {
      const inner = await this.started
      inner.dispatchEvent(new inner.MessageEvent("message", { data }))
    }
  }
}
